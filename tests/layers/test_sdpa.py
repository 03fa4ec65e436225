"""The paged backend against the formula, on random queries, keys and values."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from twostroke.layers.attention.base import AttentionMetadata
from twostroke.layers.attention.reference import ReferenceAttention
from twostroke.layers.attention.sdpa import SdpaBackend

BLOCK_SIZE, HEAD_DIM, LAYERS = 4, 8, 2
WINDOWS: list[list[int | None]] = [[None, None], [5, 5], [None, 3], [1, 40]]


class Requests:
    """Sequences of random queries, keys and values, attended in arbitrary chunks through one paged
    cache.
    """

    def __init__(
        self, lengths: list[int], heads: int, kv_heads: int, windows: list[int | None], seed: int
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.lengths, self.windows = lengths, windows
        self.qkv = [
            [
                torch.randn(length, count, HEAD_DIM, generator=generator)
                for count in (heads, kv_heads, kv_heads)
            ]
            for length in lengths
        ]
        per_request = [-(-length // BLOCK_SIZE) for length in lengths]
        order = iter(torch.randperm(sum(per_request), generator=generator).tolist())
        # Columns that no request owns point to no block at all.
        self.table = np.full((len(lengths), max(per_request) + 2), 10**6, dtype=np.int32)
        for row, count in enumerate(per_request):
            self.table[row, :count] = [next(order) for _ in range(count)]
        shape = (sum(per_request), BLOCK_SIZE, kv_heads, HEAD_DIM)
        keys, values = ([torch.zeros(shape) for _ in range(LAYERS)] for _ in range(2))
        self.backend = SdpaBackend(keys, values, heads, windows)
        self.done = [0] * len(lengths)

    def step(self, counts: dict[int, int], layer: int) -> dict[int, torch.Tensor]:
        """Attend the next ``counts[r]`` tokens of each request r in both layers; returns those of
        ``layer``.
        """
        rows = list(counts)
        spans = [(r, self.done[r], self.done[r] + counts[r]) for r in rows]
        positions = [np.arange(first, last) for _, first, last in spans]
        blocks = [self.table[r][p // BLOCK_SIZE].astype(np.int64) for r, p in zip(rows, positions)]
        slots = [b * BLOCK_SIZE + p % BLOCK_SIZE for b, p in zip(blocks, positions)]
        metadata = AttentionMetadata(
            np.concatenate(([0], np.cumsum([counts[r] for r in rows]))),
            np.array([last for _, _, last in spans]),
            self.table[rows],
            torch.from_numpy(np.concatenate(slots)),
        )
        q, k, v = (
            torch.cat([self.qkv[r][i][first:last] for r, first, last in spans]) for i in range(3)
        )
        attention = self.backend.prepare(metadata)
        found = [attention(index, q, k, v) for index in range(LAYERS)][layer]
        for r, _, last in spans:
            self.done[r] = last
        return dict(zip(rows, torch.split(found, [counts[r] for r in rows])))

    def expected(self, request: int, layer: int) -> torch.Tensor:
        q, k, v = self.qkv[request]
        return ReferenceAttention(self.windows)(layer, q, k, v)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(data=st.data())
def test_any_chunking_in_any_company_gives_the_formula(data: st.DataObject) -> None:
    group = data.draw(st.sampled_from([(4, 4), (4, 2), (6, 2), (4, 1)]))
    windows: list[int | None] = data.draw(st.sampled_from(WINDOWS))
    lengths = data.draw(st.lists(st.integers(1, 60), min_size=1, max_size=5))
    requests = Requests(lengths, *group, windows, seed=data.draw(st.integers(0, 1000)))
    layer = data.draw(st.integers(0, LAYERS - 1))
    outputs: dict[int, list[torch.Tensor]] = {r: [] for r in range(len(lengths))}
    while missing := [r for r in outputs if requests.done[r] < lengths[r]]:
        chosen = data.draw(st.lists(st.sampled_from(missing), unique=True, min_size=1))
        size = st.sampled_from([1, 1, 2, 5, 20, 60])
        found = requests.step(
            {r: min(data.draw(size), lengths[r] - requests.done[r]) for r in chosen}, layer
        )
        for r, out in found.items():
            outputs[r].append(out)
    for r, parts in outputs.items():
        torch.testing.assert_close(
            torch.cat(parts), requests.expected(r, layer), atol=1e-5, rtol=1e-5
        )


@pytest.mark.parametrize("window", [None, 6])
def test_nan_in_another_request_reaches_nobody(window: int | None) -> None:
    requests = Requests([6, 40, 6], 4, 2, [window, window], seed=3)
    requests.step({0: 5, 1: 39, 2: 5}, 0)
    for part in requests.qkv[1]:
        part[39] = torch.nan
    found = requests.step({0: 1, 1: 1, 2: 1}, 0)
    assert bool(torch.isnan(found[1]).all())
    for r in (0, 2):
        torch.testing.assert_close(found[r], requests.expected(r, 0)[5:], atol=1e-5, rtol=1e-5)
