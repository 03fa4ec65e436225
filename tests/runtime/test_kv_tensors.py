"""Protects: as many blocks are allocated as fit, and a slot that returns holds zeros."""

from __future__ import annotations

import pytest
import torch

from twostroke.core.config import CacheConfig
from twostroke.core.errors import InsufficientMemoryError
from twostroke.core.kv_groups import ONE_GROUP
from twostroke.layers.kv_layout import make_layout
from twostroke.runtime import kv_tensors
from twostroke.runtime.kv_tensors import KVTensors, plan_num_blocks

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
    monkeypatch.setattr(kv_tensors, "free_memory", lambda device: 100_000)
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


def test_tensors_start_at_zero_and_slots_return_to_it() -> None:
    kv = KVTensors(2, 3, make_layout("auto", torch.bfloat16, 4, 2, 8), CPU)
    assert len(kv.keys) == len(kv.values) == 2
    assert kv.keys[0].shape == (3, 4, 2, 8) and kv.keys[0].dtype == torch.bfloat16
    assert not bool(kv.values[1].any())
    for cache in (*kv.keys, *kv.values):
        cache.fill_(torch.nan)
    kv.zero_slots(torch.tensor([0, 5]))
    for cache in (*kv.keys, *kv.values):
        finite = torch.isfinite(cache).all(-1).all(-1).view(-1)
        assert finite.nonzero().view(-1).tolist() == [0, 5]
