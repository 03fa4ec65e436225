"""Protects: the compiled attention computes every form of scores as the plain reference does.

Bounds, sinks, large heads, values of another size than keys, and latents, for every instruction set
and format of the cache; in chunks of any size, and in any company, the same bits.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from tests.layers.test_compiled import metadata_of
from twostroke.core.kv_formats import KVCacheDtype
from twostroke.kernels.library import Library
from twostroke.layers.attention.base import ScoreForm
from twostroke.layers.attention.compiled import CompiledBackend
from twostroke.layers.attention.reference import ReferenceAttention
from twostroke.layers.kv_layout import KVLayout, make_layout
from twostroke.model_spec.layer_specs import AttentionSpec, LatentSpec

LENGTH, BLOCKS = 150, 60
FORMATS: tuple[KVCacheDtype, ...] = ("auto", "int8", "int4", "fp8")


class Case(NamedTuple):
    """Sizes and scores of one layer; ``latent``: how many elements of a key are its value."""

    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    window: int | None = None
    soft_cap: float | None = None
    sinks: bool = False
    latent: int | None = None
    chunked: bool = False

    @property
    def form(self) -> ScoreForm:
        scale = 1.3 * self.key_dim**-0.5
        return ScoreForm(scale, self.soft_cap, self.latent, self.sinks, self.chunked)

    @property
    def spec(self) -> AttentionSpec:
        latent = None if self.latent is None else LatentSpec(self.key_dim, self.latent)
        sizes = (self.heads, self.kv_heads, self.key_dim, self.value_dim, self.window, latent)
        return AttentionSpec(
            *sizes,
            soft_cap=self.soft_cap,
            sinks=self.sinks,
            scale=self.form.scale,
            chunked=self.chunked,
        )

    def layouts(self, name: KVCacheDtype, dtype: torch.dtype) -> tuple[KVLayout, KVLayout]:
        sizes = (self.key_dim, self.key_dim if self.latent else self.value_dim)
        key, value = (make_layout(name, dtype, 16, self.kv_heads, size) for size in sizes)
        return key, value

    def inputs(self, dtype: torch.dtype, tokens: int = LENGTH) -> list[Tensor | None]:
        """Query, key, value and sinks."""
        generator = torch.Generator().manual_seed(self.heads)
        shapes = [(self.heads, self.key_dim), (self.kv_heads, self.key_dim)]
        shapes += [] if self.latent else [(self.kv_heads, self.value_dim)]
        random = [torch.randn(tokens, *shape, generator=generator).to(dtype) for shape in shapes]
        sinks = 2 * torch.randn(self.heads, generator=generator) if self.sinks else None
        return [*random, *([None] if self.latent else []), sinks]


CASES = {
    "soft-cap": Case(4, 2, 64, 64, soft_cap=0.7),
    "soft-cap-window": Case(8, 1, 32, 32, 9, soft_cap=2.0),
    "sinks": Case(8, 2, 64, 64, sinks=True),
    "sinks-window": Case(6, 2, 128, 128, 70, sinks=True),
    "sinks-soft-cap-many-rows": Case(16, 1, 64, 64, 40, soft_cap=1.5, sinks=True),
    "wide": Case(4, 1, 256, 256, 20),
    "widest": Case(2, 2, 512, 512, soft_cap=3.0),
    "smaller-values": Case(6, 3, 192, 128, 33),
    "larger-values": Case(5, 5, 64, 96, sinks=True),
    "values-of-64": Case(4, 2, 32, 64),
    "chunks": Case(4, 2, 64, 64, 20, chunked=True),
    "chunks-of-blocks": Case(8, 2, 128, 128, 64, chunked=True),
    "latents": Case(4, 1, 96, 64, latent=64),
    "latents-many-heads": Case(20, 1, 160, 128, soft_cap=4.0, latent=128),
}


def chunked(
    library: Library, case: Case, name: KVCacheDtype, dtype: torch.dtype, chunks: list[int]
) -> Tensor:
    layouts = case.layouts(name, dtype)
    query, key, value, sinks = case.inputs(dtype)
    assert query is not None and key is not None
    caches = [  # of nothing but NaN, as scales and as numbers
        torch.full((BLOCKS, *each.block_shape, each.dtype.itemsize), 255, dtype=torch.uint8)
        .view(each.dtype)
        .squeeze(-1)
        for each in layouts
    ]
    caches = caches[:1] * 2 if case.latent else caches
    backend = CompiledBackend(
        caches[:1], caches[1:], case.heads, [case.window], library, *layouts, case.form
    )
    parts, done = [], 0
    for count in chunks:
        rows = slice(done, done + count)
        done += count
        own_value = None if value is None else value[rows]
        attention = backend.prepare(metadata_of([count], [done], BLOCKS))
        parts.append(attention(0, query[rows], key[rows], own_value, sinks))
    return torch.cat(parts)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_equals_the_reference_in_chunks_of_any_size(
    library: Library, name: KVCacheDtype, dtype: torch.dtype, case: Case
) -> None:
    whole = chunked(library, case, name, dtype, [LENGTH])
    assert whole.shape == (LENGTH, case.heads, case.value_dim)
    for chunks in ([1] * LENGTH, [70, 1, 2, 50, 27]):
        assert torch.equal(chunked(library, case, name, dtype, chunks), whole)
    layout = make_layout(name, dtype, 16, case.kv_heads, case.key_dim)
    reference = ReferenceAttention([case.window], layout, [case.spec])
    query, key, value, sinks = case.inputs(dtype)
    assert query is not None
    expected = reference(0, query, key, value, sinks).float()
    tolerance = {"auto": 2e-5, "fp8": 2e-5}.get(name, 2e-3)
    tolerance = 2e-2 if dtype is torch.bfloat16 else tolerance
    torch.testing.assert_close(whole.float(), expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_request_does_not_depend_on_the_rest_of_the_batch(
    library: Library, name: KVCacheDtype, case: Case
) -> None:
    dtype, counts, contexts = torch.bfloat16, [1, 3, 20, 1], [60, 7, 150, 100]
    layouts = case.layouts(name, dtype)
    generator = torch.Generator().manual_seed(3)
    caches = []
    for layout in layouts:
        cache = torch.zeros(BLOCKS, *layout.block_shape, dtype=layout.dtype)
        slots = torch.arange(BLOCKS * 16)
        rows = torch.randn(len(slots), layout.kv_heads, layout.head_dim, generator=generator)
        layout.write(cache, slots, rows.to(dtype))
        caches.append(cache)
    caches = caches[:1] * 2 if case.latent else caches
    query, key, value, sinks = case.inputs(dtype, sum(counts))
    assert query is not None and key is not None
    windows = [case.window]
    backend = CompiledBackend(
        caches[:1], caches[1:], case.heads, windows, library, *layouts, case.form
    )
    together = backend.prepare(metadata_of(counts, contexts, BLOCKS))(0, query, key, value, sinks)
    own_value = None if value is None else value[:1]
    alone = backend.prepare(metadata_of(counts[:1], contexts[:1], BLOCKS))
    assert torch.equal(alone(0, query[:1], key[:1], own_value, sinks)[0], together[0])


def test_a_query_may_lie_apart(library: Library) -> None:
    """Heads of a token need not be side by side: they are then copied."""
    case = CASES["sinks"]
    query, key, value, _ = case.inputs(torch.bfloat16, 5)
    assert query is not None and key is not None
    cache = torch.zeros(4, 16, case.kv_heads, case.key_dim, dtype=torch.bfloat16)
    backend = CompiledBackend([cache], [cache.clone()], case.heads, [None], library)
    attention = backend.prepare(metadata_of([5], [5], 4))
    apart = query.transpose(0, 1).contiguous().transpose(0, 1)
    assert torch.equal(attention(0, apart, key, value), attention(0, query, key, value))


def test_which_forms_it_takes() -> None:
    def takes(key_dim: int, value_dim: int, name: KVCacheDtype, latent: int | None = None) -> bool:
        layout, value_layout = (
            make_layout(name, torch.bfloat16, 16, 2, size) for size in (key_dim, value_dim)
        )
        form = ScoreForm(1.0, 30.0, latent, sinks=True)
        return CompiledBackend.supports(torch.zeros(1), layout, value_layout, form)

    assert takes(192, 128, "auto") and takes(512, 512, "int8") and takes(576, 576, "auto", 512)
    assert not takes(192, 120, "auto") and not takes(96, 96, "auto", 60)
    assert not takes(576, 576, "int8", 512) and not takes(592, 64, "auto")
    assert not takes(96, 96, "int4", 48)
