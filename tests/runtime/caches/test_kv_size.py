"""Protects: as many blocks are allocated as fit beside the weights, and one request always does."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from twostroke.core.config import CacheConfig
from twostroke.core.errors import ConfigError, InsufficientMemoryError
from twostroke.core.kv_groups import ONE_GROUP
from twostroke.kv_cache.state_room import MAX_EMPTY_BLOCKS, CacheSize, StateSize, state_size
from twostroke.runtime.caches import kv_size
from twostroke.runtime.caches.kv_size import plan_cache_size

CPU = torch.device("cpu")


def num_blocks(config: CacheConfig, max_num_seqs: int = 4) -> int:
    return cache_size(config, max_num_seqs, StateSize())[0]


def cache_size(config: CacheConfig, max_num_seqs: int, state: StateSize) -> tuple[int, int]:
    return plan_cache_size(
        config,
        block_bytes=100 * config.block_size,
        groups=ONE_GROUP,
        max_model_len=30,
        max_num_seqs=max_num_seqs,
        device=CPU,
        state=state,
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


def test_spacing_follows_from_bytes_or_is_given() -> None:
    size = CacheConfig(block_size=8)
    assert state_size(size, 1500, 100) == StateSize(1500, 2)  # 1500 bytes beside blocks of 800
    assert state_size(CacheConfig(block_size=8, state_spacing=7), 1500, 100).spacing == 7
    unused = CacheConfig(block_size=8, enable_prefix_caching=False)
    assert state_size(unused, 1500, 100).spacing is None
    with pytest.raises(ConfigError, match="--state-spacing must be at least 1, got 0"):
        CacheConfig(state_spacing=0)


def test_without_a_prefix_cache_only_running_requests_have_slots() -> None:
    limited = CacheConfig(block_size=8, kv_cache_memory=20_000)
    assert cache_size(limited, 2, StateSize(1500, None)) == (21, 3)


def test_states_of_requests_and_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of 800 bytes; a checkpoint of 1,500 for every two of them."""
    monkeypatch.setattr(kv_size, "free_memory", lambda device: 100_000)
    state = StateSize(1500, 2)
    assert cache_size(CacheConfig(block_size=8), 2, state) == (8, 2 + 4)  # two whole requests
    limited = CacheConfig(block_size=8, kv_cache_memory=20_000)
    assert cache_size(limited, 100, state) == (7, 6 + 3)  # half of it for six that run
    assert cache_size(limited, 2, state) == (10, 2 + 5)
    with pytest.raises(InsufficientMemoryError, match="enough for 16 tokens"):
        cache_size(CacheConfig(block_size=8, kv_cache_memory=7500), 2, state)


def test_blocks_that_hold_nothing_count_tokens_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a model without attention: every byte is a state's."""
    monkeypatch.setattr(kv_size, "free_memory", lambda device: 10**6)

    def sized(memory: int | None, seqs: int = 4, length: int = 30, **cache: Any) -> CacheSize:
        config = CacheConfig(block_size=8, kv_cache_memory=memory, **cache)
        state = state_size(config, 1500, 0)
        return plan_cache_size(
            config,
            block_bytes=0,
            groups=ONE_GROUP,
            max_model_len=length,
            max_num_seqs=seqs,
            device=CPU,
            state=state,
        )

    assert sized(30_000) == (16, 20)
    assert sized(30_000, enable_prefix_caching=False) == (16, 4)
    assert sized(None) == (16, 4 * 4)  # on a CPU no more than may be of use
    assert sized(30_000, seqs=10**6).num_blocks == MAX_EMPTY_BLOCKS
    assert sized(30_000, seqs=1, length=10**7).num_blocks == 1_250_000
    with pytest.raises(InsufficientMemoryError, match="more than the 2000000 that are counted"):
        sized(30_000, length=2**40)
    with pytest.raises(InsufficientMemoryError, match=r"states of one request .* need 4\.4 KiB"):
        sized(4_000)
