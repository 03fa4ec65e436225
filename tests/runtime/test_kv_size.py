"""Protects: as many blocks are allocated as fit beside the weights, and one request always does."""

from __future__ import annotations

import pytest
import torch

from twostroke.core.config import CacheConfig
from twostroke.core.errors import InsufficientMemoryError
from twostroke.core.kv_groups import ONE_GROUP
from twostroke.runtime import kv_size
from twostroke.runtime.kv_size import plan_num_blocks

CPU = torch.device("cpu")


def num_blocks(config: CacheConfig, max_num_seqs: int = 4) -> int:
    return plan_num_blocks(
        config,
        block_bytes=100 * config.block_size,
        groups=ONE_GROUP,
        max_model_len=30,
        max_num_seqs=max_num_seqs,
        device=CPU,
    )


def test_number_of_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_size, "free_memory", lambda device: 100_000)
    assert num_blocks(CacheConfig(block_size=8)) == 16  # four requests of four blocks
    # A quarter of 100,000 bytes.
    assert num_blocks(CacheConfig(block_size=8), max_num_seqs=1000) == 31
    assert num_blocks(CacheConfig(block_size=8, cpu_memory_utilization=0.1), 1000) == 12
    assert num_blocks(CacheConfig(block_size=8, kv_cache_memory=4000)) == 5
    with pytest.raises(InsufficientMemoryError, match="enough for 24 tokens"):
        num_blocks(CacheConfig(block_size=8, kv_cache_memory=3000))
    with pytest.raises(
        InsufficientMemoryError, match=r"asks for 195\.3 KiB, but cpu has 97\.7 KiB free"
    ):
        num_blocks(CacheConfig(block_size=8, kv_cache_memory=200_000))
