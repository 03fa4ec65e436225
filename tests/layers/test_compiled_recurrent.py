"""Protects: compiled recurrent layers compute what PyTorch's operators do, wherever a text is cut
and whatever else runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from twostroke.kernels.library import Library
from twostroke.layers.attention.reference import ReferenceAttention
from twostroke.layers.norm import RMSNorm
from twostroke.layers.recurrent_state import LayerState, Segment, StateShape
from twostroke.model_spec.layer_specs import LayerSpec, RecurrentSpec
from twostroke.model_spec.recurrent_forms import (
    ConvolutionForm,
    DeltaForm,
    Mamba2Form,
    RecurrentForm,
)
from twostroke.models.branches.addition import Hidden
from twostroke.models.branches.base import BranchKind, BranchParts, PassInputs
from twostroke.models.branches.gated_delta import GatedDeltaBranch, GatedDeltaKind
from twostroke.models.branches.mamba2 import Mamba2Branch, Mamba2Kind
from twostroke.models.branches.short_convolution import ShortConvolutionBranch, ShortConvolutionKind
from twostroke.observability.profile import NO_PROFILE
from twostroke.runtime.state_tensors import StepStates

Recurrent = GatedDeltaBranch | Mamba2Branch | ShortConvolutionBranch

HIDDEN, TOKENS, SLOTS = 48, 150, 5  # more tokens than the kernels take in a turn

DELTA = DeltaForm(key_heads=2, value_heads=4, key_dim=18, value_dim=20, kernel=4)
MAMBA = Mamba2Form(
    heads=4,
    head_dim=20,
    groups=2,
    state=18,
    kernel=4,
    conv_bias=True,
    bias=False,
    output_bias=False,
    norm_groups=2,
    least_step=0.01,
)
FORMS: dict[str, RecurrentForm] = {
    "delta": DELTA,
    "delta with wide heads": replace(DELTA, key_dim=64, value_dim=144),
    "mamba": MAMBA,
    "mamba without a norm": replace(MAMBA, norm_groups=0, groups=1, conv_bias=False, kernel=2),
    "convolution": ConvolutionForm(3, bias=True),
}


def _kind(form: RecurrentForm) -> BranchKind:
    if isinstance(form, DeltaForm):
        return GatedDeltaKind()
    return Mamba2Kind() if isinstance(form, Mamba2Form) else ShortConvolutionKind()


def _branch(form: RecurrentForm, library: Library, *, compiled: bool) -> Recurrent:
    """All products are compiled; not ``compiled``: what is between them is PyTorch's."""
    layer = LayerSpec(1, 0, recurrent=RecurrentSpec(0, 0, (), 0, 4, (), 0, form))
    kind, source = _kind(form), {}
    generator = torch.Generator().manual_seed(5)
    for parameter in kind.parameters(layer, HIDDEN):
        values = torch.randn(parameter.shape, generator=generator)
        size = 1.0 if len(parameter.shape) == 1 else 0.3
        source[f"0.{parameter.name}"] = (values * size).bfloat16()
    parts = BranchParts(0, RMSNorm, 1e-6, 1.0, source, None, library, NO_PROFILE)
    branch = kind.build(layer, parts)
    assert isinstance(branch, Recurrent)
    assert branch._compiled is not None
    if not compiled:
        branch._compiled = None
    return branch


def _fresh(shapes: Sequence[StateShape], matrix_dtype: torch.dtype = torch.float32) -> LayerState:
    """Zeros, with matrices of ``matrix_dtype``."""
    dtypes = [matrix_dtype if each.is_matrix else each.dtype for each in shapes]
    rows = zip(shapes, dtypes, strict=True)
    return tuple(torch.zeros((SLOTS, *each.shape), dtype=dtype) for each, dtype in rows)


def _run(branch: Recurrent, x: Tensor, state: LayerState, segments: Sequence[Segment]) -> Tensor:
    step = PassInputs({}, ReferenceAttention([]), StepStates([state], segments))
    return branch(Hidden(x.clone()), step, None).sum()


def _tokens() -> Tensor:
    return torch.randn(TOKENS, HIDDEN, generator=torch.Generator().manual_seed(1)).bfloat16()


# Of three requests; the second gets two copies of its state on the way.
MIXED = [
    Segment(0, 1, (0,)),
    Segment(1, 40, (1, 3, 4)),
    Segment(40, 45, (1,)),
    Segment(45, TOKENS, (2,)),
]


@pytest.mark.parametrize("name", FORMS)
def test_equals_pytorch_up_to_rounding(library: Library, name: str) -> None:
    x, results = _tokens(), []
    for compiled in (True, False):
        branch = _branch(FORMS[name], library, compiled=compiled)
        state = _fresh(branch.state)
        results.append((_run(branch, x, state, MIXED), state))
    (actual, state), (expected, expected_state) = results
    added = (expected.float() - x.float()).abs().mean()
    assert added > 0.1
    assert (actual.float() - expected.float()).abs().mean() < 2e-3 * added
    for own, theirs in zip(state, expected_state, strict=True):
        assert theirs.abs().sum() > 0
        torch.testing.assert_close(own, theirs, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["delta", "mamba"])
def test_states_in_bfloat16_are_rounded_after_each_token(library: Library, name: str) -> None:
    """Decay and rounding hold back what a text has long past, so few tokens are compared."""
    x, results = _tokens()[:24], []
    for compiled in (True, False):
        branch = _branch(FORMS[name], library, compiled=compiled)
        state = _fresh(branch.state, torch.bfloat16)
        results.append((_run(branch, x, state, [Segment(0, 24, (0,))]), state))
    wide = _branch(FORMS[name], library, compiled=True)
    exact = _run(wide, x, _fresh(wide.state), [Segment(0, 24, (0,))]).float()
    (actual, state), (expected, expected_state) = results
    difference = (actual.float() - expected.float()).abs().mean()
    assert 3 * difference < (actual.float() - exact).abs().mean()  # the rounding shows, alike
    own, theirs = state[1].float(), expected_state[1].float()
    assert (own - theirs).abs().mean() < 1e-3 * theirs.abs().mean()


@pytest.mark.parametrize("matrix_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", FORMS)
def test_bits_depend_neither_on_cuts_nor_on_company(
    library: Library, name: str, matrix_dtype: torch.dtype
) -> None:
    branch, x = _branch(FORMS[name], library, compiled=True), _tokens()
    state = _fresh(branch.state, matrix_dtype)
    whole = _run(branch, x, state, [Segment(0, TOKENS, (0,))])
    cut_state = _fresh(branch.state, matrix_dtype)
    cuts = [0, 1, 2, 5, 70, 128, 129, TOKENS]
    for begin, end in pairwise(cuts):
        beside = _tokens()[: 3 + end - begin]  # three rows of another request before
        beside[3:] = x[begin:end]
        segments = [Segment(0, 3, (1,)), Segment(3, len(beside), (2,))]
        assert torch.equal(_run(branch, beside, cut_state, segments)[3:], whole[begin:end])
    for own, cut in zip(state, cut_state, strict=True):
        assert torch.equal(own[0], cut[2])


@pytest.mark.parametrize("name", FORMS)
def test_a_copy_is_the_state_on_the_way(library: Library, name: str) -> None:
    branch, x = _branch(FORMS[name], library, compiled=True), _tokens()
    state, shorter = _fresh(branch.state), _fresh(branch.state)
    _run(branch, x, state, MIXED)
    _run(branch, x[1:40], shorter, [Segment(0, 39, (0,))])
    for own, expected in zip(state, shorter, strict=True):
        assert torch.equal(own[3], expected[0]) and torch.equal(own[4], expected[0])
        assert not torch.equal(own[3], own[1])  # which went on
