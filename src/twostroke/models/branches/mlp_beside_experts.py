"""An MLP and experts that read the same hidden state, each normed on its own (Gemma 4)."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from torch import Tensor

from twostroke.kernels.pass_calls import EXPERTS, AdditionCall, BesideCall, MlpCall
from twostroke.layers.activation import KERNEL_ACTIVATIONS, activation_of
from twostroke.layers.compiled.branches import CompiledBranch
from twostroke.layers.linear import Linear
from twostroke.layers.norm import RMSNorm
from twostroke.layers.recurrent_state import StateShape
from twostroke.model_spec.layer_specs import LayerSpec, MlpSpec
from twostroke.models.branches.addition import Hidden
from twostroke.models.branches.base import Branch, BranchParts, PassInputs
from twostroke.models.branches.experts import ExpertsBranch, ExpertsKind
from twostroke.models.branches.mlp import MlpKind
from twostroke.models.parameters import Parameter, vector_parameter
from twostroke.observability.profile import GEMM

_ADDED = {
    "mlp_own_norm": "post_feedforward_layernorm_1",
    "experts_added_norm": "post_feedforward_layernorm_2",
}


@dataclass(frozen=True, slots=True)
class MlpBesideExpertsKind:
    """See ``BranchKind``; of layers without experts, the MLP alone."""

    mlp: MlpKind
    experts: ExpertsKind

    def is_in(self, layer: LayerSpec) -> bool:
        return self.mlp.is_in(layer)

    def parameters(self, layer: LayerSpec, hidden: int) -> list[Parameter]:
        own = self.mlp.parameters(layer, hidden)
        if layer.experts is None:
            return own
        router = Parameter("router_input_scale", (("router.scale", (hidden,)),))
        norms = [vector_parameter(name, stored, hidden) for name, stored in _ADDED.items()]
        return [*own, *self.experts.parameters(layer, hidden), router, *norms]

    def build(self, layer: LayerSpec, parts: BranchParts) -> Branch:
        if layer.experts is None or layer.mlp is None:
            return self.mlp.build(layer, parts)
        return MlpBesideExpertsBranch(layer.mlp, self.experts.build(layer, parts), parts)


class MlpBesideExpertsBranch:
    """``x + norm(norm(mlp(norm(x))) + norm(experts(norm(x))))``, see ``Branch``."""

    mixes_tokens = False
    state: tuple[StateShape, ...] = ()

    def __init__(self, spec: MlpSpec, experts: ExpertsBranch, parts: BranchParts) -> None:
        self._kernels, self._profiler = parts.kernels, parts.profiler
        self._activation = activation_of(spec.activation, gated=spec.gated)
        self._norm, self._added_norm = parts.norm("mlp_norm"), parts.norm("mlp_added_norm")
        self._gate_up, self._down = parts.linear("gate_up"), parts.linear("down")
        self._ranks = parts.ranks
        self._mlp_norm = parts.norm("mlp_own_norm")
        self._experts, self._experts_norm = experts, parts.norm("experts_added_norm")
        scale = parts.tensor("router_input_scale")
        self._own_norms = self._mlp_norm, self._experts_norm, self._added_norm
        self._router_norm = RMSNorm(scale * len(scale) ** -0.5, parts.norm_eps, parts.kernels)

    def __call__(
        self, hidden: Hidden, step: PassInputs, rows: Tensor | None, onto: Tensor | None = None
    ) -> Hidden:
        x, normed = hidden.normed(self._norm)
        onto = x if onto is None else onto
        if rows is not None:
            x, normed, onto = x[rows], normed[rows], onto[rows]
        if not len(x):  # no row goes on
            return Hidden(onto)
        with self._profiler.measure(GEMM):
            inner = self._activation(self._gate_up(normed), self._kernels)
            mlp = self._mlp_norm(self._multiplied(inner))
        experts = self._experts.given(self._experts.norm(x), self._router_norm(x))
        return Hidden(onto, self._added_norm(mlp + self._experts_norm(experts)))

    def _multiplied(self, inner: Tensor) -> Tensor:
        if self._ranks is None:
            return self._down(inner)
        return self._ranks.sum(self._down.wide(inner)).to(inner.dtype)

    @property
    def asks_host(self) -> bool:
        return self._experts.asks_host

    @property
    def linears(self) -> tuple[Linear, ...]:
        return self._gate_up, self._down, *self._experts.linears

    def compiled(self) -> CompiledBranch | None:
        experts, down = self._experts.compiled(), self._down.kernel_call
        norm, gate_up = self._norm.kernel_call, self._gate_up.kernel_call
        own = [each.kernel_call for each in (self._router_norm, *self._own_norms)]
        norms = [each for each in own if each is not None]
        if experts is None or not isinstance(experts.call, MlpCall) or len(norms) < len(own):
            return None
        activation = KERNEL_ACTIVATIONS.get(self._activation)
        if norm is None or gate_up is None or down is None or activation is None:
            return None
        call = MlpCall(norm=norm, gate_up=gate_up, down=AdditionCall(linear=down), kind=EXPERTS)
        call.activation, call.experts = activation, experts.call.experts
        call.beside = ctypes.pointer(BesideCall(experts.call.norm, *norms))
        return CompiledBranch(call)
