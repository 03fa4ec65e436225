"""Norms of sums on a GPU: one launch gives the bits of an addition and a norm after it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor

from tests.checkpoints import random_tensors
from tests.models.tiny_families import FAMILIES
from twostroke.layers import norm as norms
from twostroke.layers.attention.reference import ReferenceAttention
from twostroke.layers.gpu.load import is_interpreting
from twostroke.layers.norm import CenteredNorm, MakeNorm, MultipliedNorm, OffsetNorm, RMSNorm
from twostroke.models.decoder import Decoder
from twostroke.models.registry import decoder_family
from twostroke.models.support import parse_runnable

if TYPE_CHECKING:
    from twostroke.layers.gpu.operators import GpuOperators

TOLERANCES = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}
KINDS = [RMSNorm, OffsetNorm, CenteredNorm]


def sixteenths(*shape: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Up to 4: a sum of two is exact in each type."""
    return (torch.randint(-64, 65, shape) / 16).to(device, dtype)


def made(
    make: MakeNorm, size: int, dtype: torch.dtype, operators: GpuOperators, device: torch.device
) -> Any:
    norm: Any = make(torch.randn(size, device=device).to(dtype), 1e-5, None)
    norm.gpu = operators
    return norm


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize("size", [1, 77, 80, 4096])
def test_bits_of_an_addition_and_a_norm(
    make: MakeNorm, size: int, dtype: torch.dtype, operators: GpuOperators, device: torch.device
) -> None:
    norm = made(make, size, dtype, operators, device)
    residual, update = (sixteenths(5, size, dtype=dtype, device=device) for _ in range(2))
    before = residual.clone(), update.clone()
    total, normed = norm.of_sum(residual, update)
    assert total.dtype is normed.dtype is dtype
    assert torch.equal(total, residual + update)
    assert torch.equal(normed, norm(total))
    assert torch.equal(residual, before[0]) and torch.equal(update, before[1])
    norm.gpu = None
    plain, expected = norm.of_sum(residual, update)
    assert torch.equal(total, plain)
    tolerance = TOLERANCES[dtype]
    torch.testing.assert_close(normed, expected, atol=tolerance, rtol=tolerance)
    norm.gpu = operators
    for row in range(5):  # whatever else is in the batch
        alone = norm.of_sum(residual[row : row + 1], update[row : row + 1])
        assert torch.equal(alone[0][0], total[row]) and torch.equal(alone[1][0], normed[row])


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("make", KINDS)
def test_a_sum_is_rounded_before_the_norm_reads_it(
    make: MakeNorm, dtype: torch.dtype, operators: GpuOperators, device: torch.device
) -> None:
    norm = made(make, 333, dtype, operators, device)
    residual = (torch.randn(9, 333, device=device) * 30).to(dtype)
    update = torch.randn(9, 333, device=device).to(dtype)
    total, normed = norm.of_sum(residual, update)
    if dtype is torch.bfloat16 and is_interpreting():  # which cuts bits off
        torch.testing.assert_close(total, residual + update, atol=0, rtol=2**-7)
    else:
        assert torch.equal(total, residual + update)
    assert torch.equal(normed, norm(total))


def test_rows_that_lie_apart_and_no_rows(operators: GpuOperators, device: torch.device) -> None:
    norm = made(RMSNorm, 40, torch.float32, operators, device)
    wide, update = torch.randn(6, 99, device=device), torch.randn(40, 6, device=device).T
    total, normed = norm.of_sum(wide[:, 7:47], update)
    assert torch.equal(total, wide[:, 7:47] + update) and torch.equal(normed, norm(total))
    total, normed = MultipliedNorm(norm, 0.5).of_sum(wide[:, 7:47], update)
    assert torch.equal(normed, norm(total) * 0.5)
    assert [len(own) for own in norm.of_sum(wide[:0, :40], update[:0])] == [0, 0]


# Launches that add and norm for 20 tokens, and for 5: where products of few rows add, none is left.
LAUNCHES = {
    "llama": (4, 0),
    "qwen3-moe": (6, 1),  # experts never add
    "gemma2": (4, 4),  # what is added is normed before
    "granite": (4, 4),  # or scaled
    "deepseek-v2": (4, 1),
}


@pytest.mark.parametrize("family", LAUNCHES)
def test_layers_of_a_model(
    family: str, device: torch.device, operators: GpuOperators, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = parse_runnable(FAMILIES[family])
    own = decoder_family(spec.model_type)
    stored = random_tensors(FAMILIES[family])
    given = {
        each.name: torch.cat([stored[name] for name, _ in each.parts]).view(each.shape).to(device)
        for each in own.parameters(spec)
    }
    model = Decoder(spec, own, given, 64)
    launch, launched = type(operators).add_and_normalize, list[int]()

    def counted(self: GpuOperators, residual: Tensor, *args: Any, **how: Any) -> Any:
        launched.append(len(residual))
        return launch(self, residual, *args, **how)

    monkeypatch.setattr(type(operators), "add_and_normalize", counted)
    specs = [layer.attention for layer in spec.each_layer()]
    states = []
    for in_one in (True, False):
        if not in_one:
            for kind in KINDS:
                monkeypatch.setattr(kind, "of_sum", norms._one_by_one)
        for tokens in (20, 5):
            attention = ReferenceAttention(spec.sliding_windows, None, specs)
            ids = torch.arange(tokens, device=device)
            with torch.inference_mode():
                states.append(model.forward(ids, ids.clone(), attention))
    counts = launched.count(20), launched.count(5)
    assert counts == LAUNCHES[family]
    assert torch.equal(states[0], states[2]) and torch.equal(states[1], states[3])
