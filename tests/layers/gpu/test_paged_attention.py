"""Attention on a GPU gives what PyTorch's gives, and writes the same cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from twostroke.layers.attention.base import AttentionBackend, AttentionMetadata, ScoreForm
from twostroke.layers.attention.sdpa import SdpaBackend
from twostroke.layers.kv_layout import KVLayout, PlainLayout, ScaledLayout

if TYPE_CHECKING:
    from twostroke.layers.gpu.operators import GpuOperators

BLOCK_SIZE = 16
TOLERANCES = {torch.float32: 2e-5, torch.bfloat16: 2e-2}


class Shape(NamedTuple):
    heads: int = 4
    kv_heads: int = 2
    key_dim: int = 32
    value_dim: int = 32
    window: int | None = None
    soft_cap: float | None = None
    sinks: bool = False
    latent: int | None = None  # all heads see one row, whose first elements are the values
    dtype: torch.dtype = torch.float32
    cache: torch.dtype = torch.float32  # int8: with scales


# Queries of each request, and its tokens in the cache after the step.
MIXED = [(1, 1), (1, 37), (1, 700), (5, 300), (9, 9), (40, 90), (130, 130), (8, 8)]
SHAPES = {
    "plain": Shape(),
    "one KV head": Shape(kv_heads=1),
    "each its own": Shape(kv_heads=4),
    "odd group": Shape(heads=14, kv_heads=2),
    "large group": Shape(heads=20, kv_heads=1),
    "narrow": Shape(key_dim=8, value_dim=8),
    "odd width": Shape(key_dim=40, value_dim=24),
    "wide": Shape(key_dim=256, value_dim=256),
    "window": Shape(window=33),
    "window of one": Shape(window=1),
    "soft cap": Shape(soft_cap=5.0),
    "sinks": Shape(sinks=True),
    "all": Shape(window=50, soft_cap=5.0, sinks=True),
    "bfloat16": Shape(dtype=torch.bfloat16, cache=torch.bfloat16),
    "bfloat16 cache": Shape(cache=torch.bfloat16),
    "latents": Shape(20, 1, 48, latent=32),
    "wide latents": Shape(6, 1, 80, latent=64),
    "odd latents": Shape(3, 1, 28, latent=20, window=33),
    "bfloat16 latents": Shape(20, 1, 48, latent=32, dtype=torch.bfloat16, cache=torch.bfloat16),
    "fp8 latents": Shape(20, 1, 48, latent=32, dtype=torch.bfloat16, cache=torch.float8_e4m3fn),
    "fp8 cache": Shape(dtype=torch.bfloat16, cache=torch.float8_e4m3fn),
    "int8 cache": Shape(cache=torch.int8),
    "int8, one KV head": Shape(kv_heads=1, cache=torch.int8),
    "int8, odd group": Shape(14, 2, 40, 24, cache=torch.int8),
    "int8, wide": Shape(key_dim=256, value_dim=256, cache=torch.int8),
    "int8, all": Shape(window=50, soft_cap=5.0, sinks=True, cache=torch.int8),
    "int8 latents": Shape(20, 1, 48, latent=32, cache=torch.int8),
    "int8, odd latents": Shape(3, 1, 28, latent=20, window=33, cache=torch.int8),
    "int8 of bfloat16": Shape(window=33, dtype=torch.bfloat16, cache=torch.int8),
}


class Step:
    """Random queries, keys and values, and a cache that has what came before."""

    def __init__(self, shape: Shape, requests: list[tuple[int, int]], device: torch.device) -> None:
        generator = torch.Generator().manual_seed(11)
        lens, contexts = map(np.array, zip(*requests))
        blocks = -(-contexts // BLOCK_SIZE)
        order = iter(torch.randperm(int(blocks.sum()), generator=generator).tolist())
        # Columns that no request owns point to no block at all.
        table = np.full((len(lens), blocks.max() + 2), 10**6, dtype=np.int32)
        for row, count in enumerate(blocks):
            table[row, :count] = [next(order) for _ in range(count)]
        slots = [
            table[row][at // BLOCK_SIZE].astype(np.int64) * BLOCK_SIZE + at % BLOCK_SIZE
            for row, (count, context) in enumerate(requests)
            for at in [np.arange(context - count, context)]
        ]

        def normal(*size: int) -> Tensor:
            return torch.randn(size, generator=generator).to(device)

        self.metadata = AttentionMetadata(
            np.concatenate(([0], np.cumsum(lens))),
            contexts,
            table,
            torch.from_numpy(np.concatenate(slots)).to(device),
        )
        tokens, kv_heads = int(lens.sum()), shape.kv_heads
        dtype = shape.dtype
        # Queries and keys as attention gets them: parts of wider rows.
        both = normal(tokens, shape.heads + kv_heads, shape.key_dim).to(dtype)
        self.query, self.key = both[:, : shape.heads], both[:, shape.heads :]
        self.value: Tensor | None = None
        if shape.latent is None:
            self.value = normal(tokens, kv_heads, shape.value_dim).to(dtype)
        self.sinks = normal(shape.heads) if shape.sinks else None
        count = int(blocks.sum()) * BLOCK_SIZE
        self.key_layout = self.value_layout = layout_of(shape, shape.key_dim)
        self.keys = self.values = filled(
            self.key_layout, normal(count, kv_heads, shape.key_dim).to(dtype)
        )
        if shape.latent is None:
            self.value_layout = layout_of(shape, shape.value_dim)
            rows = normal(count, kv_heads, shape.value_dim).to(dtype)
            self.values = filled(self.value_layout, rows)
        scale = shape.key_dim**-0.5
        self.form = ScoreForm(scale, shape.soft_cap, shape.latent, sinks=shape.sinks)
        self.shape = shape

    def attend(self, operators: GpuOperators | None) -> tuple[Tensor, Tensor, Tensor]:
        """Outputs, and the cache afterwards; by PyTorch without ``operators``."""
        keys = copied(self.keys)
        values = keys if self.shape.latent is not None else copied(self.values)
        heads, windows = self.shape.heads, [self.shape.window]
        layouts = self.key_layout, self.value_layout
        backend: AttentionBackend
        if operators is None:
            backend = SdpaBackend([keys], [values], heads, windows, *layouts, self.form)
        else:
            from twostroke.layers.gpu.paged_attention import PagedBackend

            backend = PagedBackend([keys], [values], heads, windows, operators, *layouts, self.form)
        attention = backend.prepare(self.metadata)
        return attention(0, self.query, self.key, self.value, self.sinks), keys, values


def copied(cache: Tensor) -> Tensor:
    """A cache whose blocks are as far apart."""
    sizes, strides = cache.size(), cache.stride()
    return cache.new_empty_strided(sizes, strides).copy_(cache)


def layout_of(shape: Shape, width: int) -> KVLayout:
    """The layout of a cache of such keys or values."""
    if shape.cache is torch.int8:
        return ScaledLayout("int8", 8, shape.dtype, BLOCK_SIZE, shape.kv_heads, width)
    name = str(shape.cache).removeprefix("torch.")
    return PlainLayout(name, shape.cache, shape.dtype, BLOCK_SIZE, shape.kv_heads, width)


def filled(layout: KVLayout, rows: Tensor) -> Tensor:
    """A cache of rows ``[slots, kv_heads, width]``."""
    size = (len(rows) // BLOCK_SIZE, *layout.block_shape)
    cache = torch.zeros(size, dtype=layout.dtype, device=rows.device)
    layout.write(cache, torch.arange(len(rows), device=rows.device), rows)
    return cache


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_mixed_step_gives_what_pytorch_gives(
    shape: Shape, operators: GpuOperators, device: torch.device
) -> None:
    if device.type == "cpu" and shape.cache not in (shape.dtype, torch.int8):
        pytest.skip("the interpreter rounds otherwise where numbers are converted")
    step = Step(shape, MIXED, device)
    expected, keys, values = step.attend(None)
    out, own_keys, own_values = step.attend(operators)
    tolerance = TOLERANCES[shape.dtype]
    torch.testing.assert_close(out, expected, atol=tolerance, rtol=tolerance)
    for own, theirs in ((own_keys, keys), (own_values, values)):
        bits = torch.uint8 if own.dtype.itemsize == 1 else own.dtype
        assert torch.equal(own.view(bits), theirs.view(bits))


@pytest.mark.parametrize("name", ["all", "latents", "int8, all"])
@pytest.mark.parametrize("position", range(len(MIXED)))
def test_a_request_gets_the_same_bits_alone(
    position: int, name: str, operators: GpuOperators, device: torch.device
) -> None:
    step = Step(SHAPES[name], MIXED, device)
    together, keys, values = step.attend(operators)
    metadata = step.metadata
    first, last = metadata.query_start[position : position + 2]
    step.keys, step.values = keys, values
    step.query, step.key = step.query[first:last], step.key[first:last]
    step.value = None if step.value is None else step.value[first:last]
    step.metadata = AttentionMetadata(
        np.array([0, last - first]),
        metadata.context_lens[position : position + 1],
        metadata.block_table[position : position + 1],
        metadata.slots[first:last],
    )
    alone, _, _ = step.attend(operators)
    assert torch.equal(alone, together[first:last])


@pytest.mark.parametrize("cache", [torch.float32, torch.int8], ids=str)
@pytest.mark.parametrize("number", [torch.nan, torch.inf])
def test_nan_of_a_request_stays_its_own(
    number: float, cache: torch.dtype, operators: GpuOperators, device: torch.device
) -> None:
    step = Step(Shape(cache=cache), [(1, 20), (1, 40), (30, 30)], device)
    expected, _, _ = step.attend(None)
    step.key[1, :, 3] = number
    step.query[1].abs_()
    out, keys, _ = step.attend(operators)
    assert bool(torch.isnan(out[1]).all())
    torch.testing.assert_close(out[0], expected[0], atol=2e-5, rtol=2e-5)
    torch.testing.assert_close(out[2:], expected[2:], atol=2e-5, rtol=2e-5)
    slots = step.metadata.slots
    assert not bool(torch.isfinite(step.key_layout.probe(keys, slots[1:2])))
    assert bool(torch.isfinite(step.key_layout.probe(keys, slots[2:])))


@pytest.mark.parametrize("latent", [None, 16])
@pytest.mark.parametrize("window", [None, 20])
def test_scales_that_no_query_sees_are_not_read(
    window: int | None, latent: int | None, operators: GpuOperators, device: torch.device
) -> None:
    """Another layer's numbers may be there: a block has room for layers of several shapes."""
    shape = Shape(4, 1, window=window, latent=latent, cache=torch.int8)
    step = Step(shape, MIXED, device)
    expected, _, _ = step.attend(operators)
    seen = torch.zeros(len(step.keys), BLOCK_SIZE, dtype=torch.bool)
    metadata = step.metadata
    for table, count, context in zip(
        metadata.block_table, metadata.query_lens.tolist(), metadata.context_lens.tolist()
    ):
        first = 0 if window is None else max(0, context - count - window + 1)
        at = np.arange(first, context)
        seen[table[at // BLOCK_SIZE], at % BLOCK_SIZE] = True
    for name, layout in (("keys", step.key_layout), ("values", step.value_layout)):
        assert isinstance(layout, ScaledLayout)
        wider = torch.full((len(seen), step.keys.shape[1] + 32), 0xFF, dtype=torch.uint8)
        cache = wider.to(device)[:, 16:-16]
        cache.copy_(getattr(step, name))
        layout.parts(cache)[1].movedim(-1, 1)[~seen.to(device)] = 0x7F80  # infinity
        setattr(step, name, cache)
    out, _, _ = step.attend(operators)
    assert torch.equal(out, expected)


def test_rows_are_rounded_as_everywhere(operators: GpuOperators, device: torch.device) -> None:
    """Halves between two integers, tiny and huge numbers, and zeros, in heads of their own."""
    step = Step(Shape(kv_heads=4, cache=torch.int8), [(300, 300)], device)
    assert step.value is not None
    sizes = torch.tensor([1e-38, 1e-30, 1.0, 3e38], device=device)
    step.key = (step.key / 5).clamp(-1, 1) * sizes[:, None]
    step.value[:, 0] = 0
    step.value[:, 1] = torch.arange(-254, 255, device=device)[:300, None] / 2
    step.value[:, 1, 0] = 127
    step.keys.zero_()
    step.values.zero_()
    expected_keys, expected_values = step.keys.clone(), step.values.clone()
    step.key_layout.write(expected_keys, step.metadata.slots, step.key)
    step.value_layout.write(expected_values, step.metadata.slots, step.value)
    _, keys, values = step.attend(operators)
    assert torch.equal(keys, expected_keys) and torch.equal(values, expected_values)
