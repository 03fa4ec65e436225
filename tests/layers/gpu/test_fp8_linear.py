"""Products in numbers of 8 bits on a GPU give what their codes say, row by row."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor

from twostroke.core.errors import ConfigError
from twostroke.layers.linear import make_linear
from twostroke.runtime.weights import check_quantization

if TYPE_CHECKING:
    from twostroke.layers.gpu.fp8_linear import Fp8Linear
    from twostroke.layers.gpu.operators import GpuOperators

DTYPES = [torch.float32, torch.bfloat16]


def layer(
    outputs: int, inputs: int, dtype: torch.dtype, device: torch.device, *, bias: bool
) -> tuple[Fp8Linear, Tensor, Tensor | None]:
    from twostroke.layers.gpu.fp8_linear import Fp8Linear

    generator = torch.Generator().manual_seed(outputs)
    # Outputs of very different sizes: one scale for all would lose the small ones.
    sizes = torch.logspace(-3, 1, outputs)[:, None]
    weight = (torch.randn(outputs, inputs, generator=generator) * sizes).to(device, dtype)
    own = torch.randn(outputs, generator=generator).to(device, dtype) if bias else None
    linear = make_linear(weight, own, "fp8", None)
    assert isinstance(linear, Fp8Linear)
    return linear, weight, own


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("outputs", "inputs"), [(48, 64), (32, 288), (16, 1024)])
def test_products_are_near_those_of_the_weight(
    outputs: int, inputs: int, dtype: torch.dtype, operators: GpuOperators, device: torch.device
) -> None:
    linear, weight, bias = layer(outputs, inputs, dtype, device, bias=inputs != 64)
    sizes = torch.tensor([1e-4, 1.0, 300.0, 0.0, 1.0], device=device)[:, None]
    x = (torch.randn(5, inputs, device=device) * sizes).to(dtype)
    residual = torch.randn(5, outputs, device=device).to(dtype)
    product = x.float() @ weight.float().T
    # Each factor is off by 1/16 of itself at most, and sums of many by less.
    scale = x.float().norm(dim=1)[:, None] * weight.float().norm(dim=1)[None]
    error = linear.wide(x) - (product if bias is None else product + bias.float())
    assert bool((error.abs() <= 0.05 * scale + 0.02 * (1 if bias is not None else 0)).all())
    added = linear(x, residual)
    assert added.dtype is dtype
    torch.testing.assert_close(added, residual + linear(x))
    assert linear.nbytes == outputs * inputs + 4 * outputs
    torch.testing.assert_close(linear(x[3:4]).float()[0], (bias * 1.0).float() if bias is not None
                               else torch.zeros(outputs, device=device))  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_codes_are_pytorchs(
    dtype: torch.dtype, operators: GpuOperators, device: torch.device
) -> None:
    from twostroke.layers.gpu.fp8_linear import rounded

    linear, _, _ = layer(16, 96, dtype, device, bias=False)
    x = torch.randn(7, 104, device=device).to(dtype)[:, 4:100]  # rows of a wider tensor
    codes, scales = linear.rounded_rows(x)
    expected, expected_scales = rounded(x)
    torch.testing.assert_close(scales, expected_scales)
    if device.type == "cpu":  # the interpreter cuts bits off where a GPU rounds: one step at most
        own, theirs = (each.view(torch.uint8).int() for each in (codes, expected))
        assert int((own - theirs).abs().max()) <= 1
    else:
        assert torch.equal(codes.view(torch.uint8), expected.view(torch.uint8))


def test_a_row_gets_the_same_bits_alone(operators: GpuOperators, device: torch.device) -> None:
    linear, _, _ = layer(48, 64, torch.bfloat16, device, bias=True)
    x = torch.randn(5, 64, device=device).bfloat16()
    together = linear(x)
    for row in range(5):
        assert torch.equal(linear(x[row : row + 1])[0], together[row])


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_what_is_not_finite_is_seen_in_its_row_alone(
    bad: float, operators: GpuOperators, device: torch.device
) -> None:
    linear, _, _ = layer(48, 64, torch.bfloat16, device, bias=False)
    x = torch.randn(3, 64, device=device).bfloat16()
    x[1, 5] = bad
    finite = torch.isfinite(linear(x)).all(1)
    assert finite.tolist() == [True, False, True]


def test_rows_of_the_weight(operators: GpuOperators, device: torch.device) -> None:
    linear, weight, _ = layer(48, 64, torch.float32, device, bias=False)
    indices = torch.tensor([3, 0, 47], device=device)
    rows = linear.weight_rows(indices)
    torch.testing.assert_close(rows, weight[indices], rtol=1 / 16, atol=1e-3)


def test_other_shapes_keep_their_precision(operators: GpuOperators, device: torch.device) -> None:
    assert make_linear(torch.randn(40, 64, device=device), None, "fp8", None).is_exact


def test_a_cpu_refuses() -> None:
    with pytest.raises(ConfigError, match="fp8") as refusal:
        check_quantization("fp8", torch.bfloat16, torch.device("cpu"), None)
    assert "int8" in str(refusal.value.hint)
