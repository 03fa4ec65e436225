"""A feed-forward part, gated (SwiGLU, Shazeer 2020) or plain."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from twostroke.kernels.pass_calls import MLP, MlpCall
from twostroke.layers.activation import KERNEL_ACTIVATIONS, activation_of
from twostroke.layers.compiled.branches import CompiledBranch, norm_call
from twostroke.layers.linear import Linear
from twostroke.layers.recurrent_state import StateShape
from twostroke.model_spec.layer_specs import LayerSpec, MlpSpec
from twostroke.models.branches.addition import Hidden
from twostroke.models.branches.base import BranchParts, PassInputs
from twostroke.models.parameters import Parameter, linear_parameters, vector_parameter
from twostroke.observability.profile import GEMM


@dataclass(frozen=True, slots=True, kw_only=True)
class MlpKind:
    """Names in checkpoints, see ``BranchKind``.

    Attributes:
        norm: The name of the hidden state's norm; empty: there is none.
        fused: Gate and up in one, in place of the two.
        added_norm: The name of the norm of what is added; empty: there is none.
    """

    norm: str = "post_attention_layernorm"
    fused: str = ""
    gate: str = "mlp.gate_proj"
    up: str = "mlp.up_proj"
    down: str = "mlp.down_proj"
    added_norm: str = ""

    def is_in(self, layer: LayerSpec) -> bool:
        return layer.mlp is not None

    def parameters(self, layer: LayerSpec, hidden: int) -> list[Parameter]:
        spec = _spec_of(layer)
        gate_up = [(self.gate, spec.size)] * spec.gated + [(self.up, spec.size)]
        sections: tuple[int, ...] = ()
        if self.fused:
            gate_up, sections = [(self.fused, 2 * spec.size)], (spec.size, spec.size)
        norms = [("mlp_norm", self.norm), ("mlp_added_norm", self.added_norm)]
        return [
            *(vector_parameter(name, own, hidden) for name, own in norms if own),
            *linear_parameters("gate_up", gate_up, hidden, spec.bias, sections),
            *linear_parameters("down", [(self.down, hidden)], spec.size, spec.bias),
        ]

    def build(self, layer: LayerSpec, parts: BranchParts) -> MlpBranch:
        return MlpBranch(_spec_of(layer), parts)


class MlpBranch:
    """``x + down(activation(gate_up(norm(x))))``, see ``Branch``."""

    mixes_tokens = False
    state: tuple[StateShape, ...] = ()

    def __init__(self, spec: MlpSpec, parts: BranchParts) -> None:
        self._kernels, self._profiler = parts.kernels, parts.profiler
        self._activation = activation_of(spec.activation, gated=spec.gated)
        self._norm = parts.optional_norm("mlp_norm")
        self._gate_up = parts.linear("gate_up")
        self._add = parts.addition("down", "mlp_added_norm")

    def __call__(
        self, hidden: Hidden, step: PassInputs, rows: Tensor | None, onto: Tensor | None = None
    ) -> Hidden:
        x, normed = hidden.normed(self._norm)
        onto = x if onto is None else onto
        if rows is not None:
            normed, onto = normed[rows], onto[rows]
        with self._profiler.measure(GEMM):
            gate_up = self._gate_up(normed)  # [tokens, 2 * size], or size without a gate
        inner = self._activation(gate_up, self._kernels)
        with self._profiler.measure(GEMM):
            return self._add(inner, onto)

    @property
    def linears(self) -> tuple[Linear, ...]:
        return self._gate_up, self._add.linear

    def compiled(self) -> CompiledBranch | None:
        norm, gate_up, down = norm_call(self._norm), self._gate_up.kernel_call, self._add.compiled()
        activation = KERNEL_ACTIVATIONS.get(self._activation)
        if norm is None or gate_up is None or down is None or activation is None:
            return None
        call = MlpCall(norm=norm, gate_up=gate_up, down=down, activation=activation, kind=MLP)
        return CompiledBranch(call)


def _spec_of(layer: LayerSpec) -> MlpSpec:
    assert layer.mlp is not None  # as ``is_in`` says
    return layer.mlp
