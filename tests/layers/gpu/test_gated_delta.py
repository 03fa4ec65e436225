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
from twostroke.models.branches.addition import Hidden
from twostroke.models.branches.base import BranchParts, PassInputs
from twostroke.models.branches.gated_delta import GatedDeltaBranch, GatedDeltaKind
from twostroke.observability.profile import NO_PROFILE
from twostroke.runtime.state_tensors import StateTensors, StepStates

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
    return branch(Hidden(x.clone()), step, None).sum()


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


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("matrix", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", FORMS)
def test_prompts_in_chunks_give_what_token_after_token_gives(
    name: str, matrix: torch.dtype, dtype: torch.dtype, operators: GpuOperators,
    device: torch.device,
) -> None:  # fmt: skip
    """Of whole chunks and parts of them, with copies on the way, beside requests of few tokens."""
    segments = [
        Segment(0, 1, (0,)),
        Segment(1, 130, (1, 3)),
        Segment(130, 140, (1,)),
        Segment(140, 173, (2,)),
        Segment(173, 180, (4,)),
    ]
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(180, HIDDEN, generator=generator).to(device, dtype)
    results = []
    for on_gpu in (True, False):
        branch = branch_of(FORMS[name], dtype, device)
        assert branch._on_gpu is not None
        if not on_gpu:
            branch._on_gpu = None
        state = fresh(branch, matrix, device)
        results.append((run(branch, x, state, segments), state))
    (actual, state), (expected, expected_state) = results
    assert torch.equal(state[0], expected_state[0])
    # A state in bfloat16 is rounded once a segment here, after each token there.
    tolerance = TOLERANCES[dtype] if matrix is torch.float32 else 2e-2
    for own, theirs in ((actual, expected), (state[1], expected_state[1])):
        difference = (own.float() - theirs.float()).abs()
        assert float(difference.mean()) < tolerance * float(theirs.float().abs().mean())
        if matrix is torch.float32 and dtype is torch.float32:
            torch.testing.assert_close(own, theirs, atol=1e-4, rtol=1e-4)


def test_equal_keys_that_never_fade(operators: GpuOperators, device: torch.device) -> None:
    """The system of a chunk is as far from diagonal as it can be: powers of it would overflow."""
    branch = branch_of(DELTA, torch.float32, device)
    delta = branch._on_gpu
    assert delta is not None
    tokens = 96
    inputs = torch.randn(1, DELTA.channels + DELTA.values, device=device).repeat(tokens, 1)
    gates = torch.cat((
        torch.full((tokens, DELTA.value_heads), 20.0, device=device),
        torch.full((tokens, DELTA.value_heads), -30.0, device=device),
    ), 1)  # fmt: skip
    states = [fresh(branch, torch.float32, device) for _ in range(2)]
    whole = delta(inputs, gates, StepStates([states[0]], [Segment(0, tokens, (2,))]), 0)
    parts = []
    for begin in range(0, tokens, 16):  # too few for chunks
        rows = slice(begin, begin + 16)
        step = StepStates([states[1]], [Segment(0, 16, (2,))])
        parts.append(delta(inputs[rows], gates[rows], step, 0))
    torch.testing.assert_close(whole, torch.cat(parts), atol=1e-4, rtol=1e-3)
    torch.testing.assert_close(states[0][1][2], states[1][1][2], atol=1e-4, rtol=1e-3)


def test_fixed_tables_give_the_same_bits(operators: GpuOperators, device: torch.device) -> None:
    """As recorded passes read them: two requests in tables for four, one with a copy to make."""
    branch = branch_of(DELTA, torch.bfloat16, device)
    delta = branch._on_gpu
    assert delta is not None
    x = tokens(torch.bfloat16, device)
    inputs = torch.cat([x] * 12, 1)[:4, : DELTA.channels + DELTA.values].contiguous()
    gates = x[:4, : 2 * DELTA.value_heads].float()
    expected, own = fresh(branch, torch.float32, device), fresh(branch, torch.float32, device)
    fixed = StateTensors([branch.state], SLOTS, device).fixed(8)
    fixed._layers = [own]
    before = [each.clone() for each in own]
    delta(inputs, gates, fixed.of_size(4), 0)  # as when it is recorded: no request, in no segment
    assert all(map(torch.equal, own, before))
    for segments in (
        [Segment(0, 1, (3,)), Segment(1, 2, (1,)), Segment(2, 3, (0,))],
        [Segment(0, 1, (2, 4)), Segment(1, 2, (1,))],
    ):
        count = len(segments)
        step = StepStates([expected], segments)
        assert fixed.takes(step)
        theirs = delta(inputs[:count], gates[:count], step, 0)
        part = fixed.of_size(4)
        fixed.fill(step, 4)
        assert torch.equal(delta(inputs, gates, part, 0)[:count], theirs)
        for mine, plain in zip(own, expected, strict=True):
            assert torch.equal(mine, plain)
    assert not fixed.takes(StepStates([expected], [Segment(0, 2, (1,))]))
    assert not fixed.takes(StepStates([expected], [Segment(0, 1, (1, 2, 3))]))
