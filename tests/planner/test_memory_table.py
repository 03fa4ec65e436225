"""Protects: the memory table adds up to the device, and counts requests as the engine does."""

from __future__ import annotations

import pytest

from tests.planner.questions import engine, search_for
from twostroke.planner.memory_table import memory_table


@pytest.mark.parametrize("model", ["llama-3.1-8b", "qwen3-30b-a3b", "gemma-3-12b", "bamba-9b"])
def test_rows_add_up(model: str) -> None:
    search = search_for(model)
    table = memory_table(search, engine(seqs=64))
    assert sum(size for _, size in table.rows) == pytest.approx(table.total, rel=2e-3)
    assert table.mean_requests >= table.longest_requests >= 1
    assert ("experts" in table.note) == (model == "qwen3-30b-a3b")


def test_requests_are_tokens_over_lengths() -> None:
    table = memory_table(search_for(), engine())
    blocks = -(-table.mean_tokens // 16)
    assert table.mean_requests == table.kv_tokens // 16 // blocks
