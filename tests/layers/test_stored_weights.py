"""Protects: products with weights as files store them equal those with their decoded values."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from twostroke.kernels.library import Library
from twostroke.layers.linear import PackedLinear
from twostroke.layers.mxfp4 import decode_mxfp4
from twostroke.layers.stored_weights import GROUP_INPUTS, StoredWeight, from_mxfp4, join_weights

MOST_CODES = {"q4_k": 15, "q5_k": 31, "q6_k": 63, "mxfp4": 15, "uint4": 15}


def drawn(format: str, outputs: int, inputs: int, seed: int = 0) -> StoredWeight:
    """A weight of random codes and scales."""
    random = torch.Generator().manual_seed(seed)

    def integers(least: int, most: int, width: int, dtype: torch.dtype) -> Tensor:
        drawn = torch.randint(least, most + 1, (outputs, width), generator=random)
        return drawn.to(dtype)

    def factors(width: int) -> Tensor:
        return torch.rand(outputs, width, generator=random).half().float()

    groups, supers = inputs // GROUP_INPUTS[format], inputs // 256
    if format == "int4":
        return StoredWeight(format, integers(-8, 7, inputs, torch.int8), factors(groups))
    if format == "q8_0":
        codes = integers(-127, 127, inputs, torch.int8)
        return StoredWeight(format, codes, factors(groups))
    codes = integers(0, MOST_CODES[format], inputs, torch.uint8)
    if format == "uint4":
        zeros = integers(0, 16, groups, torch.uint8)
        return StoredWeight(format, codes, factors(groups), minimums=zeros)
    if format == "mxfp4":
        return StoredWeight(format, codes, scales=integers(120, 130, groups, torch.uint8))
    if format == "q6_k":
        scales = integers(-128, 127, groups, torch.int8)
        return StoredWeight(format, codes, factors(supers), scales)
    scales, minimums = (integers(0, 63, groups, torch.uint8) for _ in range(2))
    return StoredWeight(format, codes, factors(supers), scales, factors(supers), minimums)


def whole_rows(rows: int, inputs: int) -> Tensor:
    """bfloat16 rows that the kernels need not round: -127 to 127, times a power of two."""
    random = torch.Generator().manual_seed(rows)
    x = torch.randint(-127, 128, (rows, inputs), generator=random)
    x[:, 0] = 127
    return (x * 2.0 ** -torch.arange(rows)[:, None]).bfloat16()


@pytest.mark.parametrize("format", [*GROUP_INPUTS])
@pytest.mark.parametrize("rows", [1, 3, 16, 33])
@pytest.mark.parametrize("outputs", [16, 40])
def test_products_equal_those_with_decoded_values(
    library: Library, format: str, rows: int, outputs: int
) -> None:
    weight = drawn(format, outputs, 512, seed=rows)
    x = whole_rows(rows, 512)
    got = PackedLinear(weight.packed(), None, library).wide(x)
    expected = x.double() @ weight.values().double().T
    sizes = x.double().abs() @ weight.values().double().abs().T
    assert ((got - expected).abs() < 1e-6 * sizes).all()


@pytest.mark.parametrize("format", [*GROUP_INPUTS])
def test_a_rows_product_does_not_depend_on_other_rows(library: Library, format: str) -> None:
    linear = PackedLinear(drawn(format, 80, 256).packed(), None, library)
    x = torch.randn(40, 256, generator=torch.Generator().manual_seed(1)).bfloat16()
    alone = torch.cat([linear(row[None]) for row in x])
    for count in (2, 7, 24, 40):
        assert torch.equal(linear(x[:count]), alone[:count])


@pytest.mark.parametrize("format", [*GROUP_INPUTS])
def test_rows_are_taken_in_another_order_and_joined(format: str) -> None:
    one, other = drawn(format, 24, 256), drawn(format, 8, 256, seed=1)
    order = torch.randperm(32, generator=torch.Generator().manual_seed(2))
    whole = join_weights([one, other])
    assert torch.equal(whole.values(), torch.cat([one.values(), other.values()]))
    assert torch.equal(whole.reordered(order).values(), whole.values()[order])


@pytest.mark.parametrize(
    ("format", "bits"),
    [
        *(("q8_0", 9), ("q4_k", 4.75), ("q5_k", 5.75), ("q6_k", 6.625)),
        *(("mxfp4", 4.25), ("int4", 5), ("uint4", 5.25)),
    ],
)
def test_bits_in_memory(format: str, bits: float) -> None:
    assert drawn(format, 64, 512).packed().nbytes * 8 == bits * 64 * 512


@pytest.mark.parametrize("format", [*GROUP_INPUTS])
def test_rows_are_looked_up_in_a_packed_weight(library: Library, format: str) -> None:
    weight = drawn(format, 40, 512)
    indices = torch.tensor([39, 0, 17, 17, 5])
    rows = PackedLinear(weight.packed(), None, library).weight_rows(indices)
    assert torch.equal(rows, weight.values()[indices].bfloat16())


def test_a_zero_point_in_the_middle_gives_the_bits_of_weights_without(library: Library) -> None:
    plain = drawn("int4", 40, 512)
    codes, zeros = (plain.codes + 8).to(torch.uint8), torch.full((40, 16), 8, dtype=torch.uint8)
    shifted = StoredWeight("uint4", codes, plain.factors, minimums=zeros)
    x = torch.randn(33, 512, generator=torch.Generator().manual_seed(3)).bfloat16()
    one, other = (PackedLinear(own.packed(), None, library) for own in (plain, shifted))
    for rows in (1, 5, 33):
        assert torch.equal(one.wide(x[:rows]), other.wide(x[:rows]))


def test_mxfp4_of_safetensors_is_what_decoding_gives(library: Library) -> None:
    blocks = torch.arange(256, dtype=torch.uint8).repeat(2).view(8, 4, 16)
    scales = torch.arange(3, 252, 8, dtype=torch.uint8)[: 8 * 4 - 1]
    scales = torch.cat((scales, scales[:1])).view(8, 4)
    expected = decode_mxfp4(blocks, scales, torch.float32)
    assert torch.equal(from_mxfp4(blocks, scales).values(), expected)
    linear = PackedLinear(from_mxfp4(blocks, scales).packed(), None, library)
    assert torch.equal(linear.weight_rows(torch.arange(8)), expected.bfloat16())
