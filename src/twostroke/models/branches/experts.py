"""A mixture of experts (Shazeer et al. 2017): each token goes through a few of many MLPs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from twostroke.layers.activation import GATED_ACTIVATIONS
from twostroke.layers.compiled_experts import CompiledExperts, ExpertWeights, GatedMlp
from twostroke.layers.compiled_pass import CompiledBranch
from twostroke.layers.linear import Linear
from twostroke.layers.recurrent_state import StateShape
from twostroke.layers.routing import route
from twostroke.model_spec.layer_specs import ExpertsSpec, LayerSpec
from twostroke.models.branches.base import BranchParts, PassInputs
from twostroke.models.parameters import Parameter, linear_parameters, vector_parameter
from twostroke.observability.profile import GEMM


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsKind:
    """Names in checkpoints, see ``BranchKind``.

    Attributes:
        expert: What the names of an expert's tensors begin with, with its index for ``{}``.
        correction: The bias by which experts are chosen, where the spec has one.
        shared: What the names of the shared experts' tensors begin with.
        stacked: The experts lie in two tensors, inputs before outputs; gate and up take turns.
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
    stacked: bool = False

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
        if self.stacked:
            parameters += self._stacks(spec, hidden)
        else:
            for index in range(spec.count):
                own = self.expert.format(index)
                parameters += self._mlp(f"experts.{index}.", own, spec.size, hidden)
        if spec.shared_size:
            parameters += self._mlp("shared_", self.shared, spec.shared_size, hidden)
        if spec.shared_gate:
            gate = [(self.shared_gate, 1)]
            parameters += linear_parameters("shared_gate", gate, hidden, False)
        return parameters

    def _mlp(self, name: str, own: str, size: int, hidden: int) -> list[Parameter]:
        gate_up = [(own + self.gate, size), (own + self.up, size)]
        return [
            *linear_parameters(f"{name}gate_up", gate_up, hidden, False),
            *linear_parameters(f"{name}down", [(own + self.down, hidden)], size, False),
        ]

    def _stacks(self, spec: ExpertsSpec, hidden: int) -> list[Parameter]:
        count, inner, own = spec.count, 2 * spec.size, self.expert
        shapes: dict[str, tuple[int, ...]] = {
            "gate_up_proj": (count, hidden, inner),
            "down_proj": (count, spec.size, hidden),
        }
        if spec.bias:
            shapes |= {"gate_up_proj_bias": (count, inner), "down_proj_bias": (count, hidden)}
        return [Parameter(f"stack.{name}", ((own + name, at),)) for name, at in shapes.items()]

    def build(self, layer: LayerSpec, parts: BranchParts) -> ExpertsBranch:
        spec = _spec_of(layer)
        experts = _unstack(spec, parts) if self.stacked else _each(spec, parts)
        return ExpertsBranch(spec, experts, parts)


class ExpertsBranch:
    """``x`` and the weighted sum of its experts' MLPs of ``norm(x)``, see ``Branch``.

    Rows are grouped by expert, so that only the weights of experts that some row needs are read.
    """

    mixes_tokens = False
    state: tuple[StateShape, ...] = ()

    def __init__(self, spec: ExpertsSpec, experts: Sequence[GatedMlp], parts: BranchParts) -> None:
        self._spec = spec
        self._kernels, self._profiler = parts.kernels, parts.profiler
        self._scale = parts.residual_scale
        self._activation = GATED_ACTIVATIONS[spec.activation]
        self._norm = parts.norm("experts_norm")
        shared, gate = None, None
        router = parts.linear("router", is_exact=True)
        correction = parts.tensor("correction").float() if spec.routing.corrected else None
        if spec.shared_size:
            shared = GatedMlp(parts.linear("shared_gate_up"), parts.linear("shared_down"))
        if spec.shared_gate:
            gate = parts.linear("shared_gate", is_exact=True)
        self._weights = ExpertWeights(router, experts, correction, shared, gate)
        self._compiled: CompiledExperts | None = None
        if parts.kernels is not None and CompiledExperts.can_run(self._weights, spec.activation):
            self._compiled = CompiledExperts(
                self._weights,
                spec.routing,
                spec.per_token,
                spec.activation,
                self._scale,
                parts.kernels,
            )

    def __call__(
        self, x: Tensor, step: PassInputs, rows: Tensor | None, onto: Tensor | None = None
    ) -> Tensor:
        onto = x if onto is None else onto
        if rows is not None:
            x, onto = x[rows], onto[rows]
        if not len(x):  # no row goes on
            return onto
        normed = self._norm(x)
        with self._profiler.measure(GEMM):
            if self._compiled is not None:
                return self._compiled(normed, onto)
            added = self._mix(normed).to(x.dtype)
        return onto + (added if self._scale == 1.0 else added * self._scale)

    @property
    def linears(self) -> tuple[Linear, ...]:
        return tuple(self._weights.matrices)

    def compiled(self) -> CompiledBranch | None:
        return None

    def _mix(self, x: Tensor) -> Tensor:
        """What is added, in PyTorch's operators, which ``CompiledExperts`` is checked against."""
        spec, weights = self._spec, self._weights
        logits = weights.router.wide(x)
        chosen, shares = route(logits, spec.routing, spec.per_token, weights.correction)
        added = self._sum_chosen(x, chosen, shares)
        return added if weights.shared is None else added + self._share(x, *weights.shared)

    def _sum_chosen(self, x: Tensor, chosen: Tensor, shares: Tensor) -> Tensor:
        """Float32 ``[tokens, hidden]``; each token's experts are summed in the order of choice."""
        tokens, per_token = chosen.shape
        order = chosen.flatten().argsort(stable=True)  # pairs of token and place, by expert
        counts = chosen.flatten().bincount(minlength=self._spec.count).tolist()
        outputs = x.new_empty(tokens * per_token, x.shape[1])
        start = 0
        for (gate_up, down), count in zip(self._weights.experts, counts, strict=True):
            if count:
                pairs = order[start : start + count]
                inner = self._activation(gate_up(x[pairs // per_token]), self._kernels)
                outputs[pairs] = down(inner)
                start += count
        mixed = outputs.view(tokens, per_token, -1).float() * shares[..., None]
        return mixed.sum(1)

    def _share(self, x: Tensor, gate_up: Linear, down: Linear) -> Tensor:
        out = down(self._activation(gate_up(x), self._kernels))
        gate = self._weights.shared_gate
        return out if gate is None else torch.sigmoid(gate(x)) * out


def _each(spec: ExpertsSpec, parts: BranchParts) -> list[GatedMlp]:
    """Gates with ups, and downs, of each expert."""
    return [
        GatedMlp(parts.linear(f"experts.{index}.gate_up"), parts.linear(f"experts.{index}.down"))
        for index in range(spec.count)
    ]


def _unstack(spec: ExpertsSpec, parts: BranchParts) -> list[GatedMlp]:
    """The same of experts that lie in one tensor."""
    gate_up, down = parts.tensor("stack.gate_up_proj"), parts.tensor("stack.down_proj")
    biases: list[tuple[Tensor | None, Tensor | None]] = [(None, None)] * spec.count
    if spec.bias:
        both = parts.tensor("stack.gate_up_proj_bias"), parts.tensor("stack.down_proj_bias")
        biases = [(_untwine(first), second) for first, second in zip(*both, strict=True)]
    return [
        GatedMlp(
            parts.linear_of(_untwine(gate_up[index].T), first),
            parts.linear_of(down[index].T.contiguous(), second),
        )
        for index, (first, second) in enumerate(biases)
    ]


def _untwine(rows: Tensor) -> Tensor:
    """Gates before ups, where they take turns along the first dimension."""
    return torch.cat((rows[::2], rows[1::2]))


def _spec_of(layer: LayerSpec) -> ExpertsSpec:
    assert layer.experts is not None  # as ``is_in`` says
    return layer.experts
