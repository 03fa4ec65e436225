"""Protects: the compiled attention equals the plain reference.

For every instruction set, mix of lengths and window.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from twostroke.kernels.library import Library
from twostroke.layers.attention.base import AttentionMetadata
from twostroke.layers.attention.compiled import CompiledBackend
from twostroke.layers.attention.sdpa import SdpaBackend

BLOCK_SIZE = 16
# Rows and context of each request: alone, few, and more than one task of rows; from an empty cache
# and on top of a context.
MIXED = ([1, 3, 1, 8, 20, 1, 30, 130, 60], [1, 50, 200, 130, 20, 16, 77, 150, 60])


def metadata_of(
    query_lens: list[int],
    context_lens: list[int],
    num_blocks: int,
    block_size: int = BLOCK_SIZE,
) -> AttentionMetadata:
    """Blocks in random order; what lies beyond a request's blocks does not exist."""
    order = np.random.default_rng(0).permutation(num_blocks)
    table = np.full((len(context_lens), max(20, num_blocks)), 2**30, dtype=np.int32)
    slots, num_used = [], 0
    for row, (new, context) in enumerate(zip(query_lens, context_lens)):
        count = -(-context // block_size)
        table[row, :count] = order[num_used : num_used + count]
        num_used += count
        positions = np.arange(context - new, context)
        slots.append(
            table[row, positions // block_size].astype(np.int64) * block_size
            + positions % block_size
        )
    starts = np.concatenate(([0], np.cumsum(query_lens)))
    return AttentionMetadata(
        starts, np.array(context_lens), table, torch.from_numpy(np.concatenate(slots))
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "window"),
    [
        (4, 2, 64, None),
        (8, 1, 32, 5),
        (6, 2, 128, 40),
        (5, 5, 48, None),
        (16, 1, 16, 70),
        (24, 2, 64, 1),
        (36, 12, 64, None),  # more KV heads than one task takes
        (36, 9, 128, 33),
        (5, 5, 64, None),
        (8, 2, 64, None),
        (4, 4, 128, None),
        (4, 2, 128, 7),
        (4, 2, 256, None),
        (6, 2, 80, None),
    ],
)
def test_equals_sdpa_on_any_mix(
    library: Library,
    dtype: torch.dtype,
    heads: int,
    kv_heads: int,
    head_dim: int,
    window: int | None,
) -> None:
    generator = torch.Generator().manual_seed(heads)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(dtype)

    num_blocks = 60
    query_lens, context_lens = MIXED
    tokens = sum(query_lens)
    caches = [random(num_blocks, BLOCK_SIZE, kv_heads, head_dim) for _ in range(2)]
    inputs = [
        random(tokens, heads, head_dim),
        random(tokens, kv_heads, head_dim),
        random(tokens, kv_heads, head_dim),
    ]
    outputs = []
    for make in (CompiledBackend, SdpaBackend):
        keys, values = caches[0].clone(), caches[1].clone()
        extra = (library,) if make is CompiledBackend else ()
        backend = make([keys], [values], heads, [window], *extra)
        attention = backend.prepare(metadata_of(query_lens, context_lens, num_blocks))
        outputs.append((attention(0, *inputs), keys, values))
    tolerance = 2e-5 if dtype is torch.float32 else 2e-2
    torch.testing.assert_close(outputs[0][0], outputs[1][0], atol=tolerance, rtol=tolerance)
    assert torch.equal(outputs[0][1], outputs[1][1])
    assert torch.equal(outputs[0][2], outputs[1][2])


def test_a_request_does_not_depend_on_the_rest_of_the_batch(library: Library) -> None:
    # Company also decides how many heads a task takes at once.
    generator = torch.Generator().manual_seed(1)
    caches = [torch.randn(60, BLOCK_SIZE, 8, 64, generator=generator).bfloat16() for _ in range(2)]
    inputs = [torch.randn(3, h, 64, generator=generator).bfloat16() for h in (24, 8, 8)]
    backend = CompiledBackend([caches[0]], [caches[1]], 24, [None], library)
    together = backend.prepare(metadata_of([1, 1, 1], [100, 7, 260], 60))(0, *inputs)
    alone = backend.prepare(metadata_of([1], [100], 60))(0, *(t[:1].contiguous() for t in inputs))
    assert torch.equal(alone[0], together[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "window"),
    [
        (4, 2, 64, None),
        (5, 5, 48, 20),
        (8, 1, 128, None),
        (8, 2, 128, 70),
        (6, 2, 64, None),
        (5, 5, 64, None),
        (4, 4, 128, None),
        (4, 2, 256, None),
        (6, 2, 80, None),
        (4, 4, 16, None),
    ],
)
def test_chunks_change_no_bit(
    library: Library,
    dtype: torch.dtype,
    heads: int,
    kv_heads: int,
    head_dim: int,
    window: int | None,
) -> None:
    """One row at a time, and tiles of many, add in the same order.

    What else is in a block is not looked at.
    """
    generator = torch.Generator().manual_seed(2)
    length = 150
    q, k, v = (
        torch.randn(length, h, head_dim, generator=generator).to(dtype)
        for h in (heads, kv_heads, kv_heads)
    )
    outputs = []
    for chunks in ([150], [1] * 150, [70, 1, 2, 50, 27]):
        caches = [
            torch.full((60, BLOCK_SIZE, kv_heads, head_dim), torch.nan, dtype=dtype)
            for _ in range(2)
        ]
        backend = CompiledBackend([caches[0]], [caches[1]], heads, [window], library)
        parts, done = [], 0
        for count in chunks:
            rows = slice(done, done + count)
            attention = backend.prepare(metadata_of([count], [done + count], 60))
            parts.append(attention(0, q[rows], k[rows], v[rows]))
            done += count
        outputs.append(torch.cat(parts))
    assert torch.equal(outputs[0], outputs[1])
    assert torch.equal(outputs[0], outputs[2])


def test_a_request_without_new_tokens_changes_nothing(library: Library) -> None:
    generator = torch.Generator().manual_seed(3)
    caches = [torch.randn(60, BLOCK_SIZE, 2, 64, generator=generator).bfloat16() for _ in range(2)]
    inputs = [torch.randn(2, h, 64, generator=generator).bfloat16() for h in (4, 2, 2)]
    backend = CompiledBackend([caches[0]], [caches[1]], 4, [None], library)
    with_it = backend.prepare(metadata_of([1, 0, 1], [100, 0, 30], 60))(0, *inputs)
    assert torch.equal(backend.prepare(metadata_of([1, 1], [100, 30], 60))(0, *inputs), with_it)


def test_which_caches_it_takes() -> None:
    shape = (4, BLOCK_SIZE, 2)
    assert CompiledBackend.supports(torch.zeros(*shape, 64))
    assert not CompiledBackend.supports(torch.zeros(*shape, 40))
    assert CompiledBackend.supports(torch.zeros(*shape, 512))
    assert not CompiledBackend.supports(torch.zeros(*shape, 592))
    assert not CompiledBackend.supports(torch.zeros(*shape, 64, dtype=torch.float16))
