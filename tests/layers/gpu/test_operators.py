"""Norms, rotation, activations and products on a GPU give what PyTorch's operators give."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.nn import functional as F

from twostroke.layers.activation import gelu_mul, gelu_tanh_mul, silu_mul
from twostroke.layers.norm import CenteredNorm, MakeNorm, OffsetNorm, RMSNorm
from twostroke.layers.rotary import TorchRotation

if TYPE_CHECKING:
    from twostroke.layers.gpu.operators import GpuOperators

TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
DTYPES = list(TOLERANCES)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("make", [RMSNorm, OffsetNorm, CenteredNorm])
@pytest.mark.parametrize("rows", [1, 3])
def test_norms(
    make: MakeNorm, rows: int, dtype: torch.dtype, operators: GpuOperators, device: torch.device
) -> None:
    size = 80
    wide = torch.randn(5, rows + 2, size, device=device).to(dtype)
    x = wide[:, 1 : rows + 1] if rows > 1 else wide[:, 0]
    weight = torch.randn(rows, size, device=device).to(dtype)
    norm: Any = make(weight if rows > 1 else weight[0], 1e-5, None)
    norm.gpu = None
    expected = norm(x)
    norm.gpu = operators
    torch.testing.assert_close(norm(x), expected, atol=TOLERANCES[dtype], rtol=TOLERANCES[dtype])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("heads", "width"), [(3, 24), (8, 128)])
def test_rotation(
    heads: int, width: int, dtype: torch.dtype, operators: GpuOperators, device: torch.device
) -> None:
    wide = torch.randn(6, heads * width + 16, device=device).to(dtype)
    x = wide[:, : heads * width].view(6, heads, width)
    positions = torch.tensor([0, 5, 1, 31, 7, 2], device=device)
    angles = torch.rand(32, width // 2, device=device) * 6
    cos, sin = angles.cos(), angles.sin()
    c, s = cos[positions], sin[positions]
    pairs = torch.cat((c, c), -1).unsqueeze(1), torch.cat((-s, s), -1).unsqueeze(1)
    expected = TorchRotation(*pairs).apply(x)
    rest = wide[:, heads * width :].clone()
    out = operators.rotate(x, positions, cos, sin)
    torch.testing.assert_close(out, expected, atol=TOLERANCES[dtype], rtol=TOLERANCES[dtype])
    assert torch.equal(wide[:, heads * width :], rest)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [24, 1500])
def test_gated_activations(
    size: int, dtype: torch.dtype, operators: GpuOperators, device: torch.device
) -> None:
    x = torch.randn(3, 2 * size, device=device).to(dtype) * 3
    for kind, activation in enumerate((silu_mul, gelu_mul, gelu_tanh_mul)):
        out = operators.gated_mul(x, kind)
        tolerance = TOLERANCES[dtype]
        torch.testing.assert_close(out, activation(x, None), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("inputs", "outputs"), [(64, 48), (300, 33), (1024, 16)])
def test_products_of_few_rows(
    inputs: int, outputs: int, dtype: torch.dtype, operators: GpuOperators, device: torch.device
) -> None:
    x = torch.randn(5, inputs + 8, device=device).to(dtype)[:, :inputs]
    weight = (torch.randn(outputs, inputs, device=device) * inputs**-0.5).to(dtype)
    bias = torch.randn(outputs, device=device).to(dtype)
    residual = torch.randn(5, outputs, device=device).to(dtype)
    for own_bias, own_residual in ((None, None), (bias, None), (None, residual), (bias, residual)):
        expected = F.linear(x.float(), weight.float(), None if own_bias is None else bias.float())
        expected = expected if own_residual is None else expected + residual.float()
        out = operators.multiply_few(x, weight, own_bias, own_residual)
        tolerance = TOLERANCES[dtype]
        torch.testing.assert_close(out, expected.to(dtype), atol=tolerance, rtol=tolerance)
        for row in range(5):  # whatever else is in the batch
            one = None if own_residual is None else residual[row : row + 1]
            alone = operators.multiply_few(x[row : row + 1], weight, own_bias, one)
            assert torch.equal(alone[0], out[row])
