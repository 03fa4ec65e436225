"""Protects: the compiled attention over a cache of few bits equals the plain form of it.

For every instruction set, mix of lengths, window, and precision of the model.
"""

from __future__ import annotations

import pytest
import torch

from tests.layers.test_compiled import MIXED, metadata_of
from twostroke.core.kv_formats import KVCacheDtype
from twostroke.kernels.library import Library
from twostroke.layers.attention.compiled import CompiledBackend
from twostroke.layers.attention.sdpa import SdpaBackend
from twostroke.layers.kv_layout import KVLayout, make_layout

BLOCKS = 60


def full_cache(layout: KVLayout, seed: int) -> torch.Tensor:
    """Every slot holds random rows."""
    generator = torch.Generator().manual_seed(seed)
    cache = torch.zeros(BLOCKS, *layout.block_shape, dtype=layout.dtype)
    slots = torch.arange(BLOCKS * layout.block_size)
    rows = torch.randn(len(slots), layout.kv_heads, layout.head_dim, generator=generator)
    layout.write(cache, slots, rows.to(layout.read_dtype))
    return cache


@pytest.mark.parametrize("name", ["int8", "int4", "fp8"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "window"),
    [
        (4, 2, 64, None),
        (8, 1, 32, 5),
        (6, 2, 128, 40),
        (5, 5, 96, None),
        (16, 1, 32, 70),
        (24, 2, 64, 1),
        (36, 12, 64, None),  # more KV heads than one task takes
        (36, 9, 128, 33),
        (5, 5, 64, None),  # an odd number of KV heads
        (4, 2, 256, None),
        (6, 2, 48, None),
    ],
)
def test_equals_the_dequantised_blocks_on_any_mix(
    library: Library,
    name: KVCacheDtype,
    dtype: torch.dtype,
    heads: int,
    kv_heads: int,
    head_dim: int,
    window: int | None,
) -> None:
    if name == "int4" and head_dim % 32:
        pytest.skip("refused: no whole groups")
    generator = torch.Generator().manual_seed(heads)
    query_lens, context_lens = MIXED
    tokens = sum(query_lens)
    inputs = [
        torch.randn(tokens, count, head_dim, generator=generator).to(dtype)
        for count in (heads, kv_heads, kv_heads)
    ]
    layout = make_layout(name, dtype, 16, kv_heads, head_dim)
    keys, values = full_cache(layout, 1), full_cache(layout, 2)
    metadata = metadata_of(query_lens, context_lens, BLOCKS)
    compiled = CompiledBackend([keys], [values], heads, [window], library, layout)
    actual = compiled.prepare(metadata)(0, *inputs)
    # The plain path in float32: bfloat16 would round what it reads.
    wide = make_layout(name, torch.float32, 16, kv_heads, head_dim)
    plain = SdpaBackend([full_cache(wide, 1)], [full_cache(wide, 2)], heads, [window], wide)
    if dtype is torch.bfloat16:  # the same bytes: what was written was rounded to bfloat16 first
        plain = SdpaBackend([keys.clone()], [values.clone()], heads, [window], wide)
    expected = plain.prepare(metadata)(0, *(each.float() for each in inputs))
    tolerance = 1e-3 if dtype is torch.float32 else 1e-2
    torch.testing.assert_close(actual.float(), expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("name", ["int8", "int4", "fp8"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "window", "block_size"),
    [
        (4, 2, 64, None, 16),
        (5, 5, 64, 20, 16),
        (8, 1, 128, None, 16),
        (8, 2, 128, 70, 8),
        (4, 2, 256, None, 16),
        (6, 2, 96, None, 16),
        (4, 4, 32, None, 5),
        (12, 3, 64, 33, 32),
    ],
)
def test_chunks_change_no_bit(
    library: Library,
    name: KVCacheDtype,
    dtype: torch.dtype,
    heads: int,
    kv_heads: int,
    head_dim: int,
    window: int | None,
    block_size: int,
) -> None:
    """One row at a time, and tiles of many, see the same numbers and add in the same order.

    What else is in a block is not looked at.
    """
    generator = torch.Generator().manual_seed(2)
    length = 150
    q, k, v = (
        torch.randn(length, h, head_dim, generator=generator).to(dtype)
        for h in (heads, kv_heads, kv_heads)
    )
    layout = make_layout(name, dtype, block_size, kv_heads, head_dim)
    outputs = []
    for chunks in ([150], [1] * 150, [70, 1, 2, 50, 27]):
        # NaN as scales, and as numbers.
        nan = torch.full((BLOCKS, *layout.block_shape), 255, dtype=torch.uint8)
        caches = [nan.view(layout.dtype).clone() for _ in range(2)]
        backend = CompiledBackend([caches[0]], [caches[1]], heads, [window], library, layout)
        parts, done = [], 0
        for count in chunks:
            rows = slice(done, done + count)
            metadata = metadata_of([count], [done + count], BLOCKS, block_size)
            parts.append(backend.prepare(metadata)(0, q[rows], k[rows], v[rows]))
            done += count
        outputs.append(torch.cat(parts))
    assert bool(outputs[0].isfinite().all())
    assert torch.equal(outputs[0], outputs[1])
    assert torch.equal(outputs[0], outputs[2])


@pytest.mark.parametrize("name", ["int8", "int4", "fp8"])
def test_a_request_does_not_depend_on_the_rest_of_the_batch(
    library: Library, name: KVCacheDtype
) -> None:
    generator = torch.Generator().manual_seed(1)
    layout = make_layout(name, torch.bfloat16, 16, 8, 64)
    caches = [full_cache(layout, seed) for seed in (1, 2)]
    inputs = [torch.randn(3, h, 64, generator=generator).bfloat16() for h in (24, 8, 8)]
    backend = CompiledBackend([caches[0]], [caches[1]], 24, [None], library, layout)
    together = backend.prepare(metadata_of([1, 1, 1], [100, 7, 260], BLOCKS))(0, *inputs)
    alone = backend.prepare(metadata_of([1], [100], BLOCKS))(0, *(t[:1].clone() for t in inputs))
    assert torch.equal(alone[0], together[0])


@pytest.mark.parametrize("name", ["int8", "int4", "fp8"])
def test_nan_in_a_query_comes_out_again(library: Library, name: KVCacheDtype) -> None:
    layout = make_layout(name, torch.bfloat16, 16, 2, 64)
    inputs = [torch.ones(2, h, 64).bfloat16() for h in (4, 2, 2)]
    for bad in (torch.nan, torch.inf):
        inputs[0][1, 3, 7] = bad
        for lens in ([1, 1], [2]):
            caches = [full_cache(layout, seed) for seed in (1, 2)]
            backend = CompiledBackend([caches[0]], [caches[1]], 4, [None], library, layout)
            out = backend.prepare(metadata_of(lens, [20] * len(lens), BLOCKS))(0, *inputs)
            assert bool(out[1, 3].isnan().all())
            assert bool(out[0].isfinite().all()) and bool(out[1, :3].isfinite().all())


def test_which_caches_it_takes() -> None:
    cache = torch.zeros(1)
    taken: tuple[KVCacheDtype, ...] = ("int8", "int4", "fp8", "bfloat16", "auto")
    for name in taken:
        assert CompiledBackend.supports(cache, make_layout(name, torch.bfloat16, 16, 2, 64))
    portable: tuple[KVCacheDtype, ...] = ("float32", "float16")
    for name in portable:
        assert not CompiledBackend.supports(cache, make_layout(name, torch.bfloat16, 16, 2, 64))
    assert not CompiledBackend.supports(cache, make_layout("int8", torch.bfloat16, 16, 2, 40))
    assert not CompiledBackend.supports(cache, make_layout("int8", torch.float16, 16, 2, 64))
