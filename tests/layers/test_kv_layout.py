"""Protects: what a cache of few bits shows is what was written, rounded once and moved whole."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
import torch
from torch import Tensor

from twostroke.core.errors import ConfigError
from twostroke.core.kv_formats import KVCacheDtype
from twostroke.layers.attention.base import AttentionMetadata
from twostroke.layers.attention.reference import ReferenceAttention
from twostroke.layers.attention.sdpa import SdpaBackend
from twostroke.layers.kv_layout import KVLayout, make_layout
from twostroke.layers.scaled_rows import GROUP, SMALLEST, decode_rows, encode_rows
from twostroke.model_spec.number_formats import cache_format

NAMES: tuple[KVCacheDtype, ...] = get_args(KVCacheDtype)
BLOCKS, BLOCK_SIZE, KV_HEADS, HEAD_DIM = 5, 4, 3, 64


def layout_of(name: KVCacheDtype, dtype: torch.dtype = torch.float32) -> KVLayout:
    return make_layout(name, dtype, BLOCK_SIZE, KV_HEADS, HEAD_DIM)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def empty_cache(layout: KVLayout) -> Tensor:
    return torch.zeros(BLOCKS, *layout.block_shape).to(layout.dtype)


def test_int8_keeps_within_half_a_step_of_the_largest() -> None:
    rows = random(50, KV_HEADS, HEAD_DIM)
    data, scales = encode_rows(rows, 8)
    assert data.shape == (50, KV_HEADS, HEAD_DIM) and scales.shape == (50, KV_HEADS, 1)
    error = (decode_rows(data, scales, 8) - rows).abs()
    assert bool((error <= scales.float() * 0.5001).all())
    # Scales are rounded up by one unit of bfloat16 at most.
    largest = rows.abs().amax(-1, keepdim=True)
    assert bool((scales.float() * 127 >= largest * 0.99999).all())
    assert bool((scales.float() * 127 <= largest * 1.01).all())


def test_int4_spends_its_whole_range_on_the_largest() -> None:
    rows = random(50, KV_HEADS, HEAD_DIM)
    data, scales = encode_rows(rows, 4)
    assert data.shape == (50, KV_HEADS, HEAD_DIM // 2) and scales.shape == (50, KV_HEADS, 2)
    groups = rows.view(*rows.shape[:-1], -1, GROUP)
    steps = scales.float().abs().unsqueeze(-1)
    error = (decode_rows(data, scales, 4).view(groups.shape) - groups).abs()
    # A value of the other sign and nearly the same size is cut from 8 to 7.
    assert bool((error <= steps * 1.001).all())
    is_largest = groups.abs() == groups.abs().amax(-1, keepdim=True)
    assert bool((error[is_largest] <= (steps * 0.0626).expand_as(error)[is_largest]).all())


@pytest.mark.parametrize("bits", [8, 4])
def test_extremes(bits: int) -> None:
    """Zeros stay zeros; tiny numbers divide by nothing; both signs may be the largest."""
    zeros = torch.zeros(2, HEAD_DIM)
    data, scales = encode_rows(zeros, bits)
    assert torch.equal(decode_rows(data, scales, bits), zeros)
    assert bool((scales.float() == SMALLEST).all())
    for value in (1e-38, -1e-38, 3e38, -3e38):
        decoded = decode_rows(*encode_rows(torch.full((1, HEAD_DIM), value), bits), bits)
        torch.testing.assert_close(decoded, torch.full((1, HEAD_DIM), value), rtol=0.01, atol=1e-30)
    both = torch.zeros(1, HEAD_DIM)
    both[0, 0], both[0, 1] = 2.0, -2.0
    decoded = decode_rows(*encode_rows(both, bits), bits)
    assert decoded[0, 1] == -2.0 if bits == 4 else abs(decoded[0, 1] + 2.0) < 0.02
    for bad in (torch.nan, torch.inf, -torch.inf):
        rows = torch.zeros(1, HEAD_DIM)
        rows[0, 5] = bad
        assert not bool(encode_rows(rows, bits)[1].isfinite().all())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_what_is_read_is_what_as_read_says(name: KVCacheDtype, dtype: torch.dtype) -> None:
    """The step that writes tokens sees the same numbers as every later one."""
    layout = layout_of(name, dtype)
    cache, rows = empty_cache(layout), random(6, KV_HEADS, HEAD_DIM).to(dtype)
    slots = torch.tensor([3, 0, 17, 19, 8, 5])
    layout.write(cache, slots, rows)
    shown = layout.read(cache, torch.arange(BLOCKS)).flatten(0, 1)
    assert shown.dtype is dtype
    assert torch.equal(shown[slots], layout.as_read(rows))
    others = torch.ones(BLOCKS * BLOCK_SIZE, dtype=torch.bool)
    others[slots] = False
    assert not bool(shown[others].nan_to_num(1).any()) or name == "int4"  # its zero is -8 times 0
    # Reading in another order moves whole blocks.
    assert torch.equal(layout.read(cache, torch.tensor([4, 4, 0])).flatten(0, 1)[:4], shown[16:])


@pytest.mark.parametrize("name", NAMES)
def test_a_block_is_all_that_belongs_to_its_tokens(name: KVCacheDtype) -> None:
    """Copy-on-write, swap and tiers move ``cache[block]`` and nothing else."""
    layout = layout_of(name, torch.bfloat16)
    cache = empty_cache(layout)
    layout.write(cache, torch.arange(4, 8), random(4, KV_HEADS, HEAD_DIM).bfloat16())
    before = layout.read(cache, torch.tensor([1]))
    cache[3] = cache[1]
    cache[1] = 0
    assert torch.equal(layout.read(cache, torch.tensor([3])), before)


@pytest.mark.parametrize("name", NAMES)
def test_bad_slots_are_found_and_zeroed(name: KVCacheDtype) -> None:
    layout = layout_of(name, torch.float32)
    for bad in (torch.nan, torch.inf, -torch.inf):
        cache, rows = empty_cache(layout), random(3, KV_HEADS, HEAD_DIM)
        rows[1, 2, 9] = bad
        layout.write(cache, torch.tensor([2, 9, 11]), rows)
        assert not bool(layout.probe(cache, torch.tensor([2, 9])).isfinite())
        assert bool(layout.probe(cache, torch.tensor([2, 11])).isfinite())
        layout.zero(cache, torch.tensor([9]))
        assert not bool(layout.read(cache, torch.tensor([2]))[0, 1].any())
        assert bool(layout.probe(cache, torch.tensor([2, 9, 11])).isfinite())


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize(("name", "at_least"), [("int8", 1.9), ("int4", 3.5), ("fp8", 2.0)])
def test_capacity_in_the_same_bytes(name: KVCacheDtype, at_least: float, head_dim: int) -> None:
    """And the model description counts the bytes that the tensors have."""

    def block_bytes(which: KVCacheDtype) -> int:
        layout = make_layout(which, torch.bfloat16, 16, 8, head_dim)
        return int(torch.zeros(layout.block_shape, dtype=layout.dtype).nbytes)

    assert block_bytes("bfloat16") / block_bytes(name) >= at_least
    assert block_bytes(name) == 16 * 8 * cache_format(name).bits_of(head_dim) / 8


def test_fp8_ends_at_its_largest_number() -> None:
    layout = layout_of("fp8", torch.bfloat16)
    rows = torch.full((1, KV_HEADS, HEAD_DIM), 1e5, dtype=torch.bfloat16)
    assert bool((layout.as_read(rows) == 448).all()) and bool((layout.as_read(-rows) == -448).all())


def test_heads_that_no_group_fits_are_refused_with_a_way_out() -> None:
    with pytest.raises(ConfigError, match="multiple of 32 elements; this model's have 80") as error:
        make_layout("int4", torch.bfloat16, 16, 2, 80)
    assert "int8" in str(error.value.hint)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("window", [None, 5])
def test_the_portable_path_equals_the_formula_in_any_chunks(
    name: KVCacheDtype, window: int | None
) -> None:
    layout = layout_of(name)
    length, heads = 19, 6
    q, k, v = (random(length, n, HEAD_DIM, seed=n) for n in (heads, KV_HEADS, KV_HEADS))
    expected = ReferenceAttention([window], layout)(0, q, k, v)
    for chunks in ([19], [1] * 19, [9, 10], [3, 12, 4]):
        keys, values = empty_cache(layout), empty_cache(layout)
        backend = SdpaBackend([keys], [values], heads, [window], layout)
        parts, done = [], 0
        table = np.array([[4, 0, 3, 1, 2]], dtype=np.int32)
        for count in chunks:
            rows = slice(done, done + count)
            at = np.arange(done, done + count)
            slots = table[0][at // BLOCK_SIZE].astype(np.int64) * BLOCK_SIZE + at % BLOCK_SIZE
            done += count
            metadata = AttentionMetadata(
                np.array([0, count]), np.array([done]), table, torch.from_numpy(slots)
            )
            parts.append(backend.prepare(metadata)(0, q[rows], k[rows], v[rows]))
        torch.testing.assert_close(torch.cat(parts), expected, atol=2e-5, rtol=2e-5)
