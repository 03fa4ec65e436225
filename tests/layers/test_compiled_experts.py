"""Protects: compiled experts compute what PyTorch's operators do, a row's bits alone and in any
company.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from twostroke.kernels.library import Library
from twostroke.layers.attention.reference import ReferenceAttention
from twostroke.layers.compiled.experts import CompiledExperts, ExpertWeights
from twostroke.layers.linear import JoinedLinear, PackedLinear
from twostroke.layers.norm import RMSNorm
from twostroke.layers.packing import pack
from twostroke.layers.recurrent_state import NO_LAYER_STATES
from twostroke.model_spec.layer_specs import ExpertsSpec, LayerSpec
from twostroke.model_spec.routing import RoutingSpec
from twostroke.models.branches.addition import Hidden
from twostroke.models.branches.base import BranchParts, PassInputs
from twostroke.models.branches.expert_stacks import ExpertStack
from twostroke.models.branches.experts import ExpertsBranch, ExpertsKind
from twostroke.observability.profile import NO_PROFILE

HIDDEN = 40  # fills no block
INPUTS = PassInputs({}, ReferenceAttention([]), NO_LAYER_STATES)


def _spec(**changes: object) -> ExpertsSpec:
    return replace(ExpertsSpec(9, 3, (), size=20), **changes)  # type: ignore[arg-type]


CASES = {
    "softmax": _spec(),
    "not normalized": _spec(routing=RoutingSpec(normalized=False, scale=2.5)),
    "shared": _spec(shared_size=36),
    "gated shared": _spec(shared_size=36, shared_gate=True),
    "groups": _spec(
        count=12,
        shared_size=16,
        routing=RoutingSpec(
            scores="sigmoid", corrected=True, groups=4, chosen_groups=2, best_two=True, scale=1.5
        ),
    ),
    "groups by their best": _spec(count=12, routing=RoutingSpec(groups=4, chosen_groups=2)),
    "clamped": _spec(activation="clamped_swiglu", bias=True),
    "weights of inputs": _spec(
        shared_size=16, routing=RoutingSpec("sigmoid", normalized=False, scales_inputs=True)
    ),
    "narrow, without gates": _spec(narrow=12, gated=False, activation="relu2", shared_size=36),
    "one expert": _spec(per_token=1),
    "wide": _spec(size=272, count=4),
}


def _layer(spec: ExpertsSpec) -> LayerSpec:
    return LayerSpec(1, 0, experts=spec)


def _branch(
    spec: ExpertsSpec,
    dtype: torch.dtype,
    library: Library | None,
    *,
    quantization: str | None = None,
    scale: float = 1.0,
) -> ExpertsBranch:
    stack = ExpertStack(inputs_first=True, take_turns=True) if spec.bias else None
    kind = ExpertsKind(stack=stack, narrow=("down", "up"))
    generator = torch.Generator().manual_seed(3)
    source = {}
    for parameter in kind.parameters(_layer(spec), HIDDEN):
        size = 1.0 if parameter.name in ("experts_norm", "correction") else 0.3
        # Rounded, so that both dtypes have the same numbers; large enough for clamps to matter.
        values = torch.randn(parameter.shape, generator=generator) * size
        source[f"0.{parameter.name}"] = values.bfloat16().to(dtype)
    parts = BranchParts(0, RMSNorm, 1e-6, scale, source, quantization, library, NO_PROFILE)
    return kind.build(_layer(spec), parts)


def _run(branch: ExpertsBranch, x: Tensor, rows: Tensor | None = None) -> Tensor:
    return branch(Hidden(x), INPUTS, rows).sum()


def _rows(count: int) -> Tensor:
    return torch.randn(count, HIDDEN, generator=torch.Generator().manual_seed(count)).bfloat16()


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("rows", [1, 5, 70])
def test_equals_pytorch_up_to_rounding(library: Library, name: str, rows: int) -> None:
    spec, x = CASES[name], _rows(rows)
    actual = _run(_branch(spec, torch.bfloat16, library, scale=0.5), x)
    expected = _run(_branch(spec, torch.float32, None, scale=0.5), x.float())
    added = expected - x.float()
    assert added.abs().mean() > 0.1
    error = (actual.float() - expected).abs().mean() / added.abs().mean()
    assert error < 0.02  # bfloat16 between the products


@pytest.mark.parametrize("name", ["gated shared", "clamped", "wide"])
@pytest.mark.parametrize("quantization", [None, "int8"])
def test_a_row_has_the_same_bits_in_any_company(
    library: Library, name: str, quantization: str | None
) -> None:
    branch = _branch(CASES[name], torch.bfloat16, library, quantization=quantization)
    x = _rows(60)
    together = _run(branch, x)
    for count in (1, 2, 7, 30):
        for first in (0, 60 - count):
            rows = torch.arange(first, first + count)
            assert torch.equal(_run(branch, x[rows].clone()), together[rows])
            assert torch.equal(_run(branch, x, rows), together[rows])


def test_more_tokens_than_a_turn_takes(library: Library) -> None:
    branch, x = _branch(CASES["shared"], torch.bfloat16, library), _rows(1030)
    assert torch.equal(_run(branch, x)[1000:], _run(branch, x[1000:].clone()))


def test_what_is_not_a_number_stays_with_its_row(library: Library) -> None:
    for name in ("softmax", "groups", "clamped"):
        branch, x = _branch(CASES[name], torch.bfloat16, library), _rows(8)
        expected = _run(branch, x.clone())
        x[3, 5] = float("nan")
        out = _run(branch, x)
        assert out[3].isnan().all()
        others = torch.arange(8) != 3
        assert torch.equal(out[others], expected[others])


def test_experts_in_two_formats_are_not_taken(library: Library) -> None:
    """A layer in parts: the kernel, which runs many experts at a time, takes whole ones alone."""

    def linear(outputs: int) -> PackedLinear:
        return PackedLinear(pack(torch.ones(outputs, 64).bfloat16(), "bfloat16"), None, library)

    whole, down, joined = (
        linear(64),
        PackedLinear(pack(torch.ones(64, 32).bfloat16(), "bfloat16"), None, library),
        JoinedLinear([linear(32), linear(32)], library),
    )
    for gate_up, is_taken in ((whole, True), (joined, False)):
        one = ExpertWeights(router=linear(2), experts=[(whole, down), (gate_up, down)])
        shared = ExpertWeights(
            router=linear(2), experts=[(whole, down)] * 2, shared=(gate_up, down)
        )
        assert CompiledExperts.can_run(one, "silu") == is_taken
        assert CompiledExperts.can_run(shared, "silu") == is_taken
