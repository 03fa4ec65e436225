"""A layer's experts in one call of the compiled kernels: bfloat16 activations on a CPU."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from twostroke.kernels.calls import ExpertCall, ExpertsCall, LinearCall, NormCall, RoutingCall
from twostroke.kernels.library import ACTIVATIONS, Library
from twostroke.kernels.pass_calls import EXPERTS, MlpCall
from twostroke.layers.linear import Linear
from twostroke.model_spec.routing import RoutingSpec

# Gates with ups, and down, of ``down(activation(gate_up(x)))``; gates before ups. Or ups alone.
Mlp = tuple[Linear, Linear]


class ExpertWeights(NamedTuple):
    """Attributes:
    correction: See ``route``.
    factors: What the weights of experts are multiplied with, float32 ``[experts]``.
    shared: What every token goes through; ``shared_gate`` has one output, whose sigmoid weighs it.
    narrow: To what experts read, and back from what they give, where that is narrower.
    """

    router: Linear
    experts: Sequence[Mlp]
    correction: Tensor | None = None
    factors: Tensor | None = None
    shared: Mlp | None = None
    shared_gate: Linear | None = None
    narrow: tuple[Linear, Linear] | None = None

    @property
    def matrices(self) -> list[Linear]:
        """All but the gate of the shared experts, which is a vector."""
        pairs = [pair for pair in (self.shared, self.narrow) if pair is not None]
        mlps = [*self.experts, *pairs]
        return [self.router, *(linear for mlp in mlps for linear in mlp)]


class CompiledExperts:
    """Chooses each token's experts, and adds what they compute.

    Only the weights of experts that some token needs are read. A token's numbers depend on no other
    token: each is summed in an order of its own.

    Args:
        weights: Kept, since the call points to them.
        scale: What is added is multiplied with it.
    """

    def __init__(
        self,
        weights: ExpertWeights,
        routing: RoutingSpec,
        per_token: int,
        activation: str,
        scale: float,
        library: Library,
    ) -> None:
        self._weights, self._library = weights, library
        router = _call_of(weights.router)
        experts = (ExpertCall * len(weights.experts))(*map(_mlp_call, weights.experts))
        shared, gate = weights.shared, weights.shared_gate
        self._call = ExpertsCall(
            hidden=router.inputs,
            experts=experts,
            shared=None if shared is None else ctypes.pointer(_mlp_call(shared)),
            shared_gate=None if gate is None else ctypes.pointer(_call_of(gate)),
            router=router,
            routing=_routing_call(routing, per_token, weights),
            scale=scale,
            activation=ACTIVATIONS[activation],
        )
        if weights.narrow is not None:
            down, up = map(_call_of, weights.narrow)
            self._call.narrow_down, self._call.narrow_up = ctypes.pointer(down), ctypes.pointer(up)
        self._reference = ctypes.byref(self._call)

    @staticmethod
    def can_run(weights: ExpertWeights, activation: str) -> bool:
        """Whether the kernels have all that such a layer needs."""
        gate = [] if weights.shared_gate is None else [weights.shared_gate]
        calls = [one.kernel_call for one in (*weights.matrices, *gate)]
        # The kernel runs many experts at a time, which it takes whole alone. The others it may not.
        pairs = [*weights.experts, *([] if weights.shared is None else [weights.shared])]
        whole = [one.kernel_call for one in (*(one for pair in pairs for one in pair), *gate)]
        is_taken = None not in calls and not any(call.num_parts for call in whole if call)
        return activation in ACTIVATIONS and is_taken

    def branch_call(self, norm: NormCall) -> MlpCall:
        """The compiled pass's, of the hidden state before ``norm``; valid as long as this lives."""
        return MlpCall(norm=norm, experts=ctypes.pointer(self._call), kind=EXPERTS)

    def __call__(self, x: Tensor, onto: Tensor | None, routed: Tensor | None = None) -> Tensor:
        """``onto``, if given, and what is added to it, ``[tokens, hidden]`` each.

        Args:
            x: Normalized, as what the router reads, ``routed``, which by default is ``x``.
        """
        out, call = torch.empty_like(x), self._call
        onto = None if onto is None else onto.contiguous()
        call.x, call.tokens, call.out = x.data_ptr(), len(x), out.data_ptr()
        call.onto = None if onto is None else onto.data_ptr()
        call.routed = None if routed is None else routed.data_ptr()
        self._library.experts(self._reference)
        return out


def _routing_call(routing: RoutingSpec, per_token: int, weights: ExpertWeights) -> RoutingCall:
    correction, factors = weights.correction, weights.factors
    return RoutingCall(
        correction=None if correction is None else correction.data_ptr(),
        factors=None if factors is None else factors.data_ptr(),
        experts=len(weights.experts),
        per_token=per_token,
        groups=routing.groups,
        chosen_groups=routing.chosen_groups,
        scale=routing.scale,
        sigmoid=routing.scores == "sigmoid",
        best_two=routing.best_two,
        normalized=routing.normalized,
        scales_inputs=routing.scales_inputs,
    )


def _mlp_call(mlp: Mlp) -> ExpertCall:
    gate_up, down = mlp
    return ExpertCall(gate_up=_call_of(gate_up), down=_call_of(down))


def _call_of(linear: Linear) -> LinearCall:
    call = linear.kernel_call
    assert call is not None  # as ``can_run`` says
    return call
