"""Products with weights of 8 and 4 bits on a GPU give what the decoded weight gives."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor

from twostroke.layers.linear import kept_linear, make_linear
from twostroke.layers.packing import quantize_int4, quantize_int8
from twostroke.layers.stored_weights import StoredWeight

if TYPE_CHECKING:
    from twostroke.layers.gpu.operators import GpuOperators
    from twostroke.layers.gpu.quantized_linear import QuantizedLinear

TOLERANCES = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 2e-2}
FORMATS = ("int8", "int4", "uint4")


def stored(format_: str, outputs: int, inputs: int, device: torch.device) -> StoredWeight:
    """A weight whose every code occurs, with scales that differ by group."""
    torch.manual_seed(outputs + inputs)
    groups = 1 if format_ == "int8" else inputs // 32
    factors = torch.rand(outputs, groups) * inputs**-0.5 / (64 if format_ == "int8" else 4)
    low, high = {"int8": (-127, 128), "int4": (-8, 8), "uint4": (0, 16)}[format_]
    dtype = torch.uint8 if format_ == "uint4" else torch.int8
    codes = torch.randint(low, high, (outputs, inputs), dtype=dtype)
    zeros = torch.randint(0, 17, (outputs, groups), dtype=torch.uint8)
    return StoredWeight(
        format_,
        codes.to(device),
        factors.to(device),
        minimums=zeros.to(device) if format_ == "uint4" else None,
    )


def values_of(weight: StoredWeight) -> Tensor:
    if weight.format == "int8":
        assert weight.factors is not None
        return weight.codes.float() * weight.factors
    return weight.values()


def layer_of(weight: StoredWeight, bias: Tensor | None, operators: GpuOperators) -> QuantizedLinear:
    from twostroke.layers.gpu.quantized_linear import QuantizedLinear

    return QuantizedLinear(weight, bias, operators)


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize(
    ("rows", "outputs", "inputs"),
    [(1, 16, 32), (3, 70, 288), (16, 33, 1056), (17, 40, 64), (64, 24, 96), (65, 24, 96)],
)
def test_products(
    rows: int, outputs: int, inputs: int, format_: str, dtype: torch.dtype,
    operators: GpuOperators, device: torch.device,
) -> None:  # fmt: skip
    weight = stored(format_, outputs, inputs, device)
    bias = torch.randn(outputs, device=device).to(dtype)
    x = torch.randn(rows, inputs + 8, device=device).to(dtype)[:, :inputs]
    residual = torch.randn(outputs, rows, device=device).to(dtype).t()
    own = layer_of(weight, bias, operators)
    # As a checkpoint is that was decoded when it was loaded: rounded to the rows' precision.
    product = x.float() @ values_of(weight).to(dtype).float().t() + bias.float()
    tolerance = TOLERANCES[dtype]
    out = own(x, residual)
    assert out.dtype is dtype
    torch.testing.assert_close(
        out, (product + residual.float()).to(dtype), atol=tolerance, rtol=tolerance
    )
    wide = own.wide(x)
    assert wide.dtype is torch.float32
    torch.testing.assert_close(wide, product, atol=tolerance, rtol=tolerance)
    # The same bits alone; but numpy's products, in the interpreter, depend on a row's place.
    if rows <= 64 and device.type != "cpu":
        for row in range(rows):
            rows_ = slice(row, row + 1)
            assert torch.equal(own(x[rows_], residual[rows_]), out[rows_])


@pytest.mark.parametrize("format_", FORMATS)
def test_weights_are_decoded_exactly(
    format_: str, operators: GpuOperators, device: torch.device
) -> None:
    weight = stored(format_, 37, 320, device)
    own = layer_of(weight, None, operators)
    indices = torch.tensor([36, 0, 5, 5], device=device)
    assert torch.equal(own.weight_rows(indices), values_of(weight)[indices])
    assert own.inputs == 320
    assert own.nbytes < 37 * 320 * (1.1 if format_ == "int8" else 0.7)


@pytest.mark.parametrize("format_", ["int8", "int4"])
def test_quantization_rounds_a_weight_as_on_a_cpu(
    format_: str, operators: GpuOperators, device: torch.device
) -> None:
    weight = torch.randn(48, 64, device=device).bfloat16()
    own = make_linear(weight, None, format_, None)
    assert not own.is_exact
    codes, scales = (quantize_int8 if format_ == "int8" else quantize_int4)(weight)
    wide = scales.view(48, -1).repeat_interleave(64 // scales.view(48, -1).shape[1], 1)
    assert torch.equal(own.weight_rows(torch.arange(48, device=device)), codes.float() * wide)


def test_odd_inputs_keep_their_precision(operators: GpuOperators, device: torch.device) -> None:
    assert make_linear(torch.randn(4, 40, device=device).bfloat16(), None, "int4", None).is_exact


def test_kept_weights_are_one_layer(operators: GpuOperators, device: torch.device) -> None:
    weight = stored("uint4", 24, 64, device)
    x, bias = torch.randn(3, 64, device=device), torch.randn(24, device=device)
    out = kept_linear([weight], bias, None)(x)
    torch.testing.assert_close(out, x @ weight.values().t() + bias, atol=1e-5, rtol=1e-5)
