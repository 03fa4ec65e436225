"""Protects: steps find the memory that they need beside the cache, as it was measured at start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.checkpoints import write_checkpoint
from tests.models.tiny_families import FAMILIES
from twostroke.core.config import EngineConfig
from twostroke.core.kv_groups import ONE_GROUP, KVGroups
from twostroke.runtime.caches.kv_size import room_on_gpu
from twostroke.runtime.caches.largest_step import (
    blocks_of_largest,
    largest_shares,
    measured_peak,
    needed_beside,
    run_largest,
)
from twostroke.runtime.loading import load_torch_executor

GB = 2**30


def config_of(**options: Any) -> EngineConfig:
    return EngineConfig.from_flat({"model": "x", "max_num_batched_tokens": 50, **options})


def test_the_largest_steps_spend_the_budget_and_run_all_requests() -> None:
    config = config_of(max_num_seqs=6)
    assert largest_shares(config, 20, gpu=True) == [[20, 20, 10], [1] * 6]
    assert largest_shares(config, 4000, gpu=True) == [[50], [1] * 6]
    # Fewer long prompts than the budget holds may run; then it cannot be spent.
    assert largest_shares(config, 4, gpu=True) == [[4] * 6, [1] * 6]
    chunked = config_of(max_num_seqs=100, max_prefill_chunk=30)
    assert largest_shares(chunked, 4000, gpu=True) == [[30, 20], [1] * 50]
    assert blocks_of_largest(config, 20, 8, ONE_GROUP, gpu=True) == 8  # 3 + 3 + 2
    assert blocks_of_largest(config, 20, 8, KVGroups((None, 4), 8), gpu=True) == 16


def test_what_is_left_to_steps() -> None:
    assert needed_beside(10 * GB, 12 * GB) == pytest.approx(2.2 * GB)
    assert needed_beside(10 * GB, 10 * GB) == needed_beside(11 * GB, 10 * GB) == 0
    # 90 % of 80 GB, of which 20 GB are used.
    assert room_on_gpu(80 * GB, 60 * GB, 20 * GB, 0.9, 0) == 52 * GB
    assert room_on_gpu(80 * GB, 60 * GB, 20 * GB, 0.9, 3 * GB) == 49 * GB
    # Other processes have taken what the share would allow: steps need their room all the same.
    assert room_on_gpu(80 * GB, 10 * GB, 20 * GB, 0.9, 3 * GB) == 7 * GB
    assert room_on_gpu(80 * GB, 2 * GB, 20 * GB, 0.9, 3 * GB) < 0


@pytest.mark.parametrize("family", ["llama", "gemma2", "qwen3-next"])
def test_the_largest_steps_run_and_write_what_they_may(family: str, tmp_path: Path) -> None:
    """The steps whose peak a GPU is asked for, on a real model; of each kind of cache."""
    folder = write_checkpoint(tmp_path, FAMILIES[family])
    options = {"model": str(folder), "device": "cpu", "max_model_len": 24, "block_size": 8}
    options |= {"max_num_batched_tokens": 50, "max_num_seqs": 6, "dtype": "float32"}
    config = EngineConfig.from_flat({**options, "kv_cache_memory": 2**22})
    executor = load_torch_executor(config)
    assert run_largest(executor.kv, executor.model, config, 24) == [3, 6]
    blocks = blocks_of_largest(config, 24, 8, executor.info.kv_groups, gpu=False)
    assert 0 < blocks <= executor.kv.num_blocks
    for tensor in executor.kv.block_tensors():
        assert bool(tensor[:3].any()) and not bool(tensor[blocks:].any())
    assert measured_peak(executor.kv, executor.model, config, 24) == 0  # a CPU's share is free
    executor.close()
