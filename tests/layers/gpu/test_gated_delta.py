"""The gated delta rule on a GPU gives what PyTorch's operators give, wherever a text is cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor

from twostroke.layers.attention.reference import ReferenceAttention
from twostroke.layers.norm import RMSNorm
from twostroke.layers.recurrent_state import LayerState, Segment
from twostroke.model_spec.layer_specs import LayerSpec, RecurrentSpec
from twostroke.model_spec.recurrent_forms import DeltaForm
from twostroke.models.branches.base import BranchParts, PassInputs
from twostroke.models.branches.gated_delta import GatedDeltaBranch, GatedDeltaKind
from twostroke.observability.profile import NO_PROFILE
from twostroke.runtime.state_tensors import StepStates

if TYPE_CHECKING:
    from twostroke.layers.gpu.operators import GpuOperators

HIDDEN, TOKENS, SLOTS = 24, 14, 5
DELTA = DeltaForm(key_heads=2, value_heads=4, key_dim=18, value_dim=20, kernel=4)
FORMS = {"odd": DELTA, "one head": replace(DELTA, key_heads=1, value_heads=1, kernel=2)}
# Of three requests; the second gets two copies of its state on the way, after two tokens alone.
MIXED = [
    Segment(0, 1, (0,)),
    Segment(1, 3, (1, 3, 4)),
    Segment(3, 8, (1,)),
    Segment(8, TOKENS, (2,)),
]
TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 4e-2}


def branch_of(form: DeltaForm, dtype: torch.dtype, device: torch.device) -> GatedDeltaBranch:
    layer = LayerSpec(1, 0, recurrent=RecurrentSpec(0, 0, (), 0, 4, (), 0, form))
    kind, source = GatedDeltaKind(), {}
    generator = torch.Generator().manual_seed(5)
    for parameter in kind.parameters(layer, HIDDEN):
        values = torch.randn(parameter.shape, generator=generator)
        size = 1.0 if len(parameter.shape) == 1 else 0.3
        source[f"0.{parameter.name}"] = (values * size).to(device, dtype)
    return kind.build(layer, BranchParts(0, RMSNorm, 1e-6, 1.0, source, None, None, NO_PROFILE))


def fresh(branch: GatedDeltaBranch, matrix: torch.dtype, device: torch.device) -> LayerState:
    """Histories that are not empty, as after a prompt."""
    torch.manual_seed(3)
    return tuple(
        torch.randn(SLOTS, *each.shape).to(device, matrix if each.is_matrix else each.dtype) / 4
        for each in branch.state
    )


def run(
    branch: GatedDeltaBranch, x: Tensor, state: LayerState, segments: Sequence[Segment]
) -> Tensor:
    step = PassInputs({}, ReferenceAttention([]), StepStates([state], segments))
    return branch(x.clone(), step, None)


def tokens(dtype: torch.dtype, device: torch.device) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(TOKENS, HIDDEN, generator=generator).to(device, dtype)


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("matrix", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", FORMS)
def test_equals_pytorch(
    name: str, matrix: torch.dtype, dtype: torch.dtype, operators: GpuOperators,
    device: torch.device,
) -> None:  # fmt: skip
    x, results = tokens(dtype, device), []
    for on_gpu in (True, False):
        branch = branch_of(FORMS[name], dtype, device)
        assert branch._on_gpu is not None
        if not on_gpu:
            branch._on_gpu = None
        state = fresh(branch, matrix, device)
        results.append((run(branch, x, state, MIXED), state))
    (actual, state), (expected, expected_state) = results
    assert (expected - x).abs().mean() > 0.1
    assert torch.equal(state[0], expected_state[0])
    for own, theirs in ((actual, expected), (state[1], expected_state[1])):
        if matrix is torch.float32:
            tolerance = TOLERANCES[dtype]
            torch.testing.assert_close(own, theirs, atol=tolerance, rtol=tolerance)
        else:  # the interpreter cuts bits off where a GPU rounds, after each token
            difference = (own.float() - theirs.float()).abs().mean()
            assert difference < 2e-2 * theirs.float().abs().mean()
    for own in state:
        assert torch.equal(own[3], own[4]) and not torch.equal(own[3], own[1])


def test_bits_depend_neither_on_cuts_nor_on_company(
    operators: GpuOperators, device: torch.device
) -> None:
    branch, x = branch_of(DELTA, torch.bfloat16, device), tokens(torch.bfloat16, device)
    delta = branch._on_gpu
    assert delta is not None
    inputs = torch.cat([x, -x, x, x], 1)[:, : DELTA.channels + DELTA.values].repeat(1, 4)
    inputs = inputs[:, : DELTA.channels + DELTA.values].contiguous()
    gates = x[:, : 2 * DELTA.value_heads].float()
    state, parts = fresh(branch, torch.float32, device), fresh(branch, torch.float32, device)
    whole = delta(inputs, gates, StepStates([state], [Segment(0, TOKENS, (2,))]), 0)
    for begin, end in pairwise([0, 1, 2, 5, TOKENS]):
        # Three rows of another request before.
        rows, own_gates = (
            torch.cat((each[:3], each[begin:end])).contiguous() for each in (inputs, gates)
        )
        segments = [Segment(0, 3, (1,)), Segment(3, len(rows), (2,))]
        assert torch.equal(
            delta(rows, own_gates, StepStates([parts], segments), 0)[3:], whole[begin:end]
        )
    for own, cut in zip(state, parts, strict=True):
        assert torch.equal(own[2], cut[2])
