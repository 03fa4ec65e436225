"""Protects: the compiled attention reads each of e4m3's 256 bytes as PyTorch does, and computes,
bit for bit, what it computes over a cache that holds the same numbers in the model's precision.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.layers.test_compiled import metadata_of
from twostroke.kernels.library import Library
from twostroke.layers.attention.compiled import CompiledBackend
from twostroke.layers.kv_layout import make_layout

BLOCKS, BLOCK_SIZE = 60, 16
BYTES = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn)
FINITE = BYTES[~BYTES.float().isnan()]


def drawn(seed: int, *shape: int) -> Tensor:
    """Numbers of e4m3, of every size and both signs."""
    generator = torch.Generator().manual_seed(seed)
    which = torch.randint(len(FINITE), shape, generator=generator)
    return FINITE.view(torch.uint8)[which].view(torch.float8_e4m3fn)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tokens", [1, 40])  # one row at a time, and tiles of many
def test_every_byte_of_a_value_is_read_as_pytorch_reads_it(
    library: Library, dtype: torch.dtype, tokens: int
) -> None:
    """Each token sees itself alone: what comes out is its value."""
    layout = make_layout("fp8", dtype, BLOCK_SIZE, 1, 256)
    caches = [torch.zeros(BLOCKS, *layout.block_shape).to(layout.dtype) for _ in range(2)]
    backend = CompiledBackend([caches[0]], [caches[1]], 1, [1], library, layout)
    value = BYTES.to(dtype).expand(tokens, 1, 256).contiguous()
    ones = torch.ones(tokens, 1, 256, dtype=dtype)
    out = backend.prepare(metadata_of([tokens], [tokens], BLOCKS))(0, ones, ones, value)
    torch.testing.assert_close(out, value, atol=0, rtol=0, equal_nan=True)
    assert int(out.isnan().sum()) == 2 * tokens


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_byte_of_a_key_is_read_as_pytorch_reads_it(
    library: Library, dtype: torch.dtype
) -> None:
    """All elements of key i are finite number i: each has its own share of what comes out."""
    keys = FINITE.view(torch.uint8)[:, None, None].expand(-1, 1, 64).contiguous()
    values = torch.randn(len(FINITE), 1, 64, generator=torch.Generator().manual_seed(0))
    for scale in (1e-4, 1e-2, 1.0):  # tells the large ones apart, and the small ones
        for tokens in (1, 30):
            query = torch.full((tokens, 1, 64), scale).to(dtype)
            outputs = both(library, dtype, keys.view(FINITE.dtype), values.to(dtype), query)
            assert torch.equal(*outputs)
    bad = keys.clone()
    bad[7, 0, 5] = 0x7F
    outputs = both(library, dtype, bad.view(FINITE.dtype), values.to(dtype), query)
    assert bool(outputs[0].isnan().all())


def both(
    library: Library, dtype: torch.dtype, keys: Tensor, values: Tensor, query: Tensor
) -> tuple[Tensor, Tensor]:
    """The last of these keys' tokens attend: over e4m3, and over its numbers in ``dtype``."""
    length, kv_heads, head_dim = keys.shape
    metadata = metadata_of([len(query)], [length], BLOCKS)
    everything = metadata_of([length], [length], BLOCKS)
    outputs = []
    for name in ("fp8", "auto"):
        layout = make_layout(name, dtype, BLOCK_SIZE, kv_heads, head_dim)
        caches = [torch.zeros(BLOCKS, *layout.block_shape).to(layout.dtype) for _ in range(2)]
        rows = values.to(torch.float8_e4m3fn).to(dtype)
        for cache, each in zip(caches, (keys.to(dtype), rows)):
            layout.write(cache, everything.slots, each)
        backend = CompiledBackend([caches[0]], [caches[1]], query.shape[1], [None], library, layout)
        latest = slice(length - len(query), length)
        outputs.append(backend.prepare(metadata)(0, query, keys[latest].to(dtype), rows[latest]))
    return outputs[0], outputs[1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "window"),
    [
        (4, 2, 64, None),
        (8, 1, 32, 5),
        (6, 2, 128, 40),
        (5, 5, 48, None),
        (16, 1, 16, 70),
        (36, 12, 64, None),  # more KV heads than one task takes
        (4, 2, 256, None),
        (6, 2, 80, None),
        (6, 3, 240, 33),
    ],
)
def test_equals_the_same_numbers_in_the_models_precision_on_any_mix(
    library: Library,
    dtype: torch.dtype,
    heads: int,
    kv_heads: int,
    head_dim: int,
    window: int | None,
) -> None:
    query_lens, context_lens = [1, 3, 1, 8, 20, 1, 130], [1, 50, 200, 130, 20, 16, 150]
    tokens = sum(query_lens)
    generator = torch.Generator().manual_seed(heads)
    query = (torch.randn(tokens, heads, head_dim, generator=generator) / 100).to(dtype)
    key, value = (drawn(seed, tokens, kv_heads, head_dim).to(dtype) for seed in (1, 2))
    filled = [drawn(seed, BLOCKS, BLOCK_SIZE, kv_heads, head_dim) for seed in (3, 4)]
    metadata, outputs = metadata_of(query_lens, context_lens, BLOCKS), []
    for name in ("fp8", "auto"):
        layout = make_layout(name, dtype, BLOCK_SIZE, kv_heads, head_dim)
        keys, values = (each.to(dtype).to(layout.dtype) for each in filled)
        backend = CompiledBackend([keys], [values], heads, [window], library, layout)
        outputs.append(backend.prepare(metadata)(0, query, key, value))
    assert bool(outputs[0].isfinite().all())
    assert torch.equal(outputs[0], outputs[1])
