"""A mixture of experts (Shazeer et al. 2017): each token goes through a few of many MLPs."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from twostroke.layers.activation import activation_of
from twostroke.layers.compiled.branches import CompiledBranch, norm_call
from twostroke.layers.compiled.experts import CompiledExperts, ExpertWeights
from twostroke.layers.gpu.load import load_operators
from twostroke.layers.linear import Linear
from twostroke.layers.recurrent_state import StateShape
from twostroke.layers.routing import route
from twostroke.model_spec.layer_specs import ExpertsSpec, LayerSpec
from twostroke.models.branches.addition import Hidden
from twostroke.models.branches.base import BranchParts, PassInputs
from twostroke.models.branches.expert_stacks import ExpertStack
from twostroke.models.parameters import Parameter, linear_parameters, vector_parameter
from twostroke.observability.profile import GEMM

if TYPE_CHECKING:
    from twostroke.layers.gpu.experts import GpuExperts

# What is stacked before an MLP's activation, with the outputs of each, and what comes after it.
MlpNames = tuple[list[tuple[str, int]], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsKind:
    """Names in checkpoints, see ``BranchKind``.

    Attributes:
        expert: What the names of an expert's tensors begin with, with its index for ``{}``.
        correction: The bias by which experts are chosen, where the spec has one.
        shared: What the names of the shared experts' tensors begin with.
        shared_fused: The full name of their gate and up in one, in place of the two.
        shared_down: The full name of their down.
        narrow: What leads to the narrow copy of the hidden state, and back, where there is one.
        stack: How they lie where all experts have their tensors in common.
        expert_scale: By expert, what the weights of those chosen are multiplied with; empty: 1.
    """

    norm: str = "post_attention_layernorm"
    router: str = "mlp.gate"
    correction: str = "mlp.gate.e_score_correction_bias"
    expert: str = "mlp.experts.{}."
    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"
    shared: str = "mlp.shared_expert."
    shared_gate: str = "mlp.shared_expert_gate"
    shared_fused: str = ""
    shared_down: str = ""
    narrow: tuple[str, str] = ("", "")
    stack: ExpertStack | None = None
    expert_scale: str = ""

    def is_in(self, layer: LayerSpec) -> bool:
        return layer.experts is not None

    def parameters(self, layer: LayerSpec, hidden: int) -> list[Parameter]:
        spec = _spec_of(layer)
        parameters = [
            vector_parameter("experts_norm", self.norm, hidden),
            *linear_parameters("router", [(self.router, spec.count)], hidden, spec.bias),
        ]
        if spec.routing.corrected:
            parameters.append(Parameter("correction", ((self.correction, (spec.count,)),)))
        if self.expert_scale:
            scale = (self.expert_scale, (spec.count,))
            parameters.append(Parameter("expert_scale", (scale,)))
        if self.stack is not None:
            parameters += self.stack.parameters(spec, hidden, self.expert)
        else:
            for index in range(spec.count):
                names = self._names(spec, self.expert.format(index), spec.size)
                inputs = spec.narrow or hidden
                parameters += _mlp(f"experts.{index}.", names, spec.size, inputs, spec.bias)
        if spec.shared_size:
            size, bias = spec.shared_size, spec.has_bias("shared_expert")
            names = self._names(spec, self.shared, size)
            sections: tuple[int, ...] = ()
            if self.shared_fused:
                names, sections = ([(self.shared_fused, 2 * size)], self.shared_down), (size, size)
            parameters += _mlp("shared_", names, size, hidden, bias, sections)
        if spec.narrow:
            down, up = self.narrow
            bias, narrow = spec.has_bias("latent"), spec.narrow
            parameters += linear_parameters("narrow_down", [(down, narrow)], hidden, bias)
            parameters += linear_parameters("narrow_up", [(up, hidden)], narrow, bias)
        if spec.shared_gate:
            gate = [(self.shared_gate, 1)]
            parameters += linear_parameters("shared_gate", gate, hidden, False)
        return parameters

    def as_stored(self, layers: Sequence[str], names: Container[str]) -> ExpertsKind:
        """This kind, with experts as a checkpoint stores them: in common tensors, or in MXFP4.

        Args:
            layers: What the names of each layer's tensors begin with.
        """
        stack, common = ExpertStack(), self.expert.removesuffix("{}.")
        if any(f"{layer}{common}0.{self.down}.weight" in names for layer in layers):
            return replace(self, stack=None, expert=f"{common}{{}}.")  # each by itself
        if self.stack is not None:
            prefixes = [layer + self.expert for layer in layers]
            return replace(self, stack=self.stack.as_stored(prefixes, names))
        if any(f"{layer}{common}{stack.gate_up}" in names for layer in layers):
            return replace(self, stack=stack, expert=common)
        return self

    def _names(self, spec: ExpertsSpec, own: str, size: int) -> MlpNames:
        gate = [(own + self.gate, size)] if spec.gated else []
        return [*gate, (own + self.up, size)], own + self.down

    def build(self, layer: LayerSpec, parts: BranchParts) -> ExpertsBranch:
        spec = _spec_of(layer)
        experts = _each(spec, parts) if self.stack is None else self.stack.experts(spec, parts)
        return ExpertsBranch(spec, experts, parts)


class ExpertsBranch:
    """``x`` and the weighted sum of its experts' MLPs of ``norm(x)``, see ``Branch``.

    Rows are grouped by expert, so that only the weights of experts that some row needs are read.
    """

    mixes_tokens = False
    state: tuple[StateShape, ...] = ()

    def __init__(
        self, spec: ExpertsSpec, experts: Sequence[tuple[Linear, Linear]], parts: BranchParts
    ) -> None:
        self._spec = spec
        self._kernels, self._profiler = parts.kernels, parts.profiler
        self._scale, self._ranks = parts.residual_scale, parts.ranks
        self._activation = activation_of(spec.activation, gated=spec.gated)
        self.norm = parts.norm("experts_norm")
        self._router = parts.linear("router", is_exact=True)
        self._correction = parts.tensor("correction").float() if spec.routing.corrected else None
        self._expert_scale = parts.tensor("expert_scale") if parts.has("expert_scale") else None
        self._experts = experts
        self._on_gpu = self._group(experts, parts)
        self._shared: tuple[Linear, Linear] | None = None
        if spec.shared_size:
            self._shared = parts.linear("shared_gate_up"), parts.linear("shared_down")
        self._narrow: tuple[Linear, Linear] | None = None
        if spec.narrow:
            self._narrow = parts.linear("narrow_down"), parts.linear("narrow_up")
        self._shared_gate = parts.linear("shared_gate", is_exact=True) if spec.shared_gate else None
        self._compiled = self._compile()

    def __call__(
        self, hidden: Hidden, step: PassInputs, rows: Tensor | None, onto: Tensor | None = None
    ) -> Hidden:
        x, normed = hidden.normed(self.norm)
        onto = x if onto is None else onto
        if rows is not None:
            normed, onto = normed[rows], onto[rows]
        if not len(normed):  # no row goes on
            return Hidden(onto)
        if self._compiled is not None and self._ranks is None:
            with self._profiler.measure(GEMM):
                return Hidden(self._compiled(normed, onto))
        return Hidden(onto, self.given(normed))

    def given(self, normed: Tensor, routed: Tensor | None = None) -> Tensor:
        """What is added, in the dtype of ``normed`` [tokens, hidden].

        Args:
            routed: Read by the router in place of ``normed``.
        """
        if self._compiled is None:
            added = self._summed(self._added(normed, routed)).to(normed.dtype)
            return added if self._scale == 1.0 else added * self._scale
        with self._profiler.measure(GEMM):
            added = self._compiled(normed, None, routed)
        return self._summed(added).to(normed.dtype)

    def _summed(self, part: Tensor) -> Tensor:
        return part if self._ranks is None else self._ranks.sum(part)

    def _added(self, normed: Tensor, routed: Tensor | None = None) -> Tensor:
        """What is added, float32 ``[tokens, hidden]``; the router reads ``routed``, if given."""
        with self._profiler.measure(GEMM):
            logits = self._router.wide(normed if routed is None else routed)
            chosen, weights = route(
                logits, self._spec.routing, self._spec.per_token, self._correction
            )
            if self._expert_scale is not None:
                weights = weights * self._expert_scale[chosen]
            if self._narrow is None:
                added = self._mix(normed, chosen, weights)
            else:
                down, up = self._narrow
                added = up(self._mix(down(normed), chosen, weights).to(normed.dtype)).float()
            return added if self._shared is None else added + self._share(normed, *self._shared)

    @property
    def linears(self) -> tuple[Linear, ...]:
        own = [linear for expert in self._experts for linear in expert]
        return (self._router, *own, *(self._shared or ()), *(self._narrow or ()))

    def compiled(self) -> CompiledBranch | None:
        norm = norm_call(self.norm)
        if norm is None or self._compiled is None or self._ranks is not None:
            return None
        return CompiledBranch(self._compiled.branch_call(norm))

    def _compile(self) -> CompiledExperts | None:
        """What computes all but the norm in one call, if the kernels have all of it."""
        spec = self._spec
        weights = ExpertWeights(
            router=self._router,
            experts=self._experts,
            correction=self._correction,
            factors=None if self._expert_scale is None else self._expert_scale.float(),
            shared=self._shared,
            shared_gate=self._shared_gate,
            narrow=self._narrow,
        )
        if self._kernels is None:
            return None
        if not CompiledExperts.can_run(weights, spec.activation):
            return None
        return CompiledExperts(
            weights,
            spec.routing,
            per_token=spec.per_token,
            activation=spec.activation,
            scale=self._scale,
            library=self._kernels,
        )

    @property
    def asks_host(self) -> bool:
        """Whether the host has to know which rows go to which expert."""
        return self._on_gpu is None

    def _group(
        self, experts: Sequence[tuple[Linear, Linear]], parts: BranchParts
    ) -> GpuExperts | None:
        """What computes all experts on a GPU, if the kernel there can."""
        operators = load_operators(self.norm.weight.device)
        if operators is None:
            return None
        from twostroke.layers.gpu.experts import GpuExperts

        plain = GpuExperts.take(experts)
        if not plain:
            return None

        def activation(x: Tensor) -> Tensor:
            return self._activation(x, self._kernels)

        return GpuExperts(
            plain, activation, operators, scales_inputs=self._spec.routing.scales_inputs
        )

    def _mix(self, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """Float32 ``[tokens, hidden]``; each token's experts are summed in the order of choice."""
        if self._on_gpu is not None:
            return self._on_gpu(x, chosen, weights)
        (tokens, per_token), scales_inputs = chosen.shape, self._spec.routing.scales_inputs
        order = chosen.flatten().argsort(stable=True)  # pairs of token and place, by expert
        counts = chosen.flatten().bincount(minlength=self._spec.count).tolist()
        outputs = x.new_empty(tokens * per_token, x.shape[1])
        start = 0
        for (gate_up, down), count in zip(self._experts, counts, strict=True):
            if count:
                pairs = order[start : start + count]
                rows = x[pairs // per_token]
                if scales_inputs:
                    rows = rows * weights.view(-1, 1)[pairs].to(x.dtype)
                inner = self._activation(gate_up(rows), self._kernels)
                outputs[pairs] = down(inner)
                start += count
        mixed = outputs.view(tokens, per_token, -1).float()
        return mixed.sum(1) if scales_inputs else (mixed * weights[..., None]).sum(1)

    def _share(self, x: Tensor, gate_up: Linear, down: Linear) -> Tensor:
        out = down(self._activation(gate_up(x), self._kernels))
        return out if self._shared_gate is None else torch.sigmoid(self._shared_gate(x)) * out


def _mlp(
    name: str,
    names: MlpNames,
    size: int,
    hidden: int,
    bias: bool,
    sections: tuple[int, ...] = (),
) -> list[Parameter]:
    gate_up, down = names
    return [
        *linear_parameters(f"{name}gate_up", gate_up, hidden, bias, sections),
        *linear_parameters(f"{name}down", [(down, hidden)], size, bias),
    ]


def _each(spec: ExpertsSpec, parts: BranchParts) -> list[tuple[Linear, Linear]]:
    """Gates with ups, and downs, of each expert."""
    return [
        (parts.linear(f"experts.{index}.gate_up"), parts.linear(f"experts.{index}.down"))
        for index in range(spec.count)
    ]


def _spec_of(layer: LayerSpec) -> ExpertsSpec:
    assert layer.experts is not None  # as ``is_in`` says
    return layer.experts
