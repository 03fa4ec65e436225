"""Attention on a GPU gives what PyTorch's gives, and writes the same cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from twostroke.layers.attention.base import AttentionBackend, AttentionMetadata, ScoreForm
from twostroke.layers.attention.sdpa import SdpaBackend
from twostroke.layers.kv_layout import PlainLayout

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
    cache: torch.dtype = torch.float32


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
        size = (int(blocks.sum()), BLOCK_SIZE, kv_heads)
        self.keys = normal(*size, shape.key_dim).to(dtype).to(shape.cache)
        self.values = self.keys
        if shape.latent is None:
            self.values = normal(*size, shape.value_dim).to(dtype).to(shape.cache)
        name = str(shape.cache).removeprefix("torch.")
        sizes = (shape.cache, dtype, BLOCK_SIZE, kv_heads)
        self.key_layout = PlainLayout(name, *sizes, shape.key_dim)
        self.value_layout = self.key_layout
        if shape.latent is None:
            self.value_layout = PlainLayout(name, *sizes, shape.value_dim)
        scale = shape.key_dim**-0.5
        self.form = ScoreForm(scale, shape.soft_cap, shape.latent, sinks=shape.sinks)
        self.shape = shape

    def attend(self, operators: GpuOperators | None) -> tuple[Tensor, Tensor, Tensor]:
        """Outputs, and the cache afterwards; by PyTorch without ``operators``."""
        keys = self.keys.clone()
        values = keys if self.shape.latent is not None else self.values.clone()
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


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_mixed_step_gives_what_pytorch_gives(
    shape: Shape, operators: GpuOperators, device: torch.device
) -> None:
    if device.type == "cpu" and shape.cache is not shape.dtype:
        pytest.skip("the interpreter rounds otherwise where numbers are converted")
    step = Step(shape, MIXED, device)
    expected, keys, values = step.attend(None)
    out, own_keys, own_values = step.attend(operators)
    tolerance = TOLERANCES[shape.dtype]
    torch.testing.assert_close(out, expected, atol=tolerance, rtol=tolerance)
    for own, theirs in ((own_keys, keys), (own_values, values)):
        bits = torch.uint8 if own.dtype.itemsize == 1 else own.dtype
        assert torch.equal(own.view(bits), theirs.view(bits))


@pytest.mark.parametrize("name", ["all", "latents"])
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


def test_nan_of_a_request_stays_its_own(operators: GpuOperators, device: torch.device) -> None:
    step = Step(Shape(), [(1, 20), (1, 40), (30, 30)], device)
    expected, _, _ = step.attend(None)
    step.key[1] = torch.nan
    out, _, _ = step.attend(operators)
    assert bool(torch.isnan(out[1]).all())
    torch.testing.assert_close(out[0], expected[0], atol=2e-5, rtol=2e-5)
    torch.testing.assert_close(out[2:], expected[2:], atol=2e-5, rtol=2e-5)
