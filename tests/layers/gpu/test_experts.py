"""Experts on a GPU give what a loop over them gives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor

from tests.layers.gpu.test_quantized_linear import stored
from twostroke.layers.activation import silu_mul
from twostroke.layers.linear import TorchLinear, kept_linear, make_linear

if TYPE_CHECKING:
    from twostroke.layers.gpu.operators import GpuOperators

HIDDEN, SIZE = 40, 24
ROUNDED_HIDDEN, ROUNDED_SIZE = 64, 96  # whole groups of 32
TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 8e-2}


def experts_of(count: int, dtype: torch.dtype, device: torch.device, *, bias: bool) -> Any:
    generator = torch.Generator().manual_seed(count)

    def linear(outputs: int, inputs: int) -> TorchLinear:
        weight = torch.randn(outputs, inputs, generator=generator) * inputs**-0.5
        own = torch.randn(outputs, generator=generator).to(device, dtype) if bias else None
        return TorchLinear(weight.to(device, dtype), own)

    return [(linear(2 * SIZE, HIDDEN), linear(HIDDEN, SIZE)) for _ in range(count)]


def one_by_one(
    experts: Any, x: Tensor, chosen: Tensor, weights: Tensor, *, scales_inputs: bool
) -> Tensor:
    """Each pair of a row and an expert by itself, in float32."""
    rows = []
    for row, own, factors in zip(x.float(), chosen.tolist(), weights):
        total = torch.zeros(HIDDEN, device=x.device)
        for expert, factor in zip(own, factors):
            up, down = experts[expert]
            inputs = row * factor if scales_inputs else row
            inner = up.weight.float() @ inputs + (0 if up.bias is None else up.bias.float())
            gated = silu_mul(inner[None].cpu(), None)[0].to(x.device)
            out = down.weight.float() @ gated + (0 if down.bias is None else down.bias.float())
            total += out if scales_inputs else out * factor
        rows.append(total)
    return torch.stack(rows)


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("scales_inputs", [False, True])
@pytest.mark.parametrize(("count", "per_token", "tokens"), [(6, 3, 1), (6, 2, 7), (3, 2, 150)])
def test_experts(
    count: int, per_token: int, tokens: int, scales_inputs: bool, dtype: torch.dtype,
    operators: GpuOperators, device: torch.device,
) -> None:  # fmt: skip
    from twostroke.layers.gpu.experts import GpuExperts

    experts = experts_of(count, dtype, device, bias=tokens != 7)
    x = torch.randn(tokens, HIDDEN, device=device).to(dtype)
    chosen = torch.rand(tokens, count, device=device).argsort(-1)[:, :per_token]
    chosen[:, 0] = 1  # one expert has all rows, others may have none
    chosen[:, 1:] = torch.where(chosen[:, 1:] == 1, 0, chosen[:, 1:])
    weights = torch.rand(tokens, per_token, device=device)
    expected = one_by_one(experts, x, chosen, weights, scales_inputs=scales_inputs)
    own = GpuExperts(
        GpuExperts.take(experts), lambda rows: operators.gated_mul(rows, 0), operators,
        scales_inputs=scales_inputs,
    )  # fmt: skip
    out = own(x, chosen, weights)
    assert out.dtype == torch.float32
    torch.testing.assert_close(out, expected, atol=TOLERANCES[dtype], rtol=TOLERANCES[dtype])
    # The same bits alone; but numpy's products, in the interpreter, depend on a row's place.
    if tokens < 100 and device.type != "cpu":
        for row in range(tokens):
            rows = slice(row, row + 1)
            assert torch.equal(own(x[rows], chosen[rows], weights[rows]), out[rows])


@pytest.mark.parametrize("format_", ["int8", "int4", "uint4", "fp8"])
@pytest.mark.parametrize("tokens", [1, 7, 150])
def test_rounded_experts_give_what_their_decoded_weights_give(
    tokens: int, format_: str, operators: GpuOperators, device: torch.device
) -> None:
    from twostroke.layers.gpu.experts import GpuExperts

    count, per_token = 5, 2

    def linear(outputs: int, inputs: int) -> Any:
        if format_ == "fp8":
            weight = torch.randn(outputs, inputs, device=device) * inputs**-0.5
            return make_linear(weight, None, "fp8", None)
        return kept_linear([stored(format_, outputs, inputs, device)], None, None)

    experts = [
        (linear(2 * ROUNDED_SIZE, ROUNDED_HIDDEN), linear(ROUNDED_HIDDEN, ROUNDED_SIZE))
        for _ in range(count)
    ]
    plain: Any = [
        tuple(TorchLinear(own.weight_rows(torch.arange(len(own.matrix.codes), device=device)))
              for own in pair)
        for pair in experts
    ]  # fmt: skip
    x = torch.randn(tokens, ROUNDED_HIDDEN, device=device)
    chosen = torch.rand(tokens, count, device=device).argsort(-1)[:, :per_token]
    weights = torch.rand(tokens, per_token, device=device)
    outs = []
    for each in (experts, plain):
        taken = GpuExperts.take(each)
        assert len(taken) == count
        own = GpuExperts(
            taken, lambda rows: operators.gated_mul(rows, 0), operators, scales_inputs=False
        )
        outs.append(own(x, chosen, weights))
    scale = float(outs[1].abs().mean())
    torch.testing.assert_close(outs[0], outs[1], atol=1e-4 * scale, rtol=1e-4)
    # The layers' own weights are parts of what the kernel reads.
    first = experts[0][0].matrix.codes
    assert first.untyped_storage().nbytes() == count * first.nbytes


def test_experts_of_several_kinds_are_left_to_the_loop(
    operators: GpuOperators, device: torch.device
) -> None:
    from twostroke.layers.gpu.experts import GpuExperts

    rounded = kept_linear([stored("int8", 64, 64, device)], None, None)
    plain = TorchLinear(torch.zeros(64, 64, device=device))
    assert GpuExperts.take([(plain, plain), (rounded, plain)]) == []
    assert len(GpuExperts.take([(plain, rounded), (plain, rounded)])) == 2
