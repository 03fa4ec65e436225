"""Protects: in no family an answer depends on company, chunks, prefix hits, preemption, drafts, or
where keys, values and states were meanwhile.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.checkpoints import write_checkpoint
from tests.models.tiny_families import FAMILIES
from tests.runtime.mixed_models import check_random_requests
from twostroke.core.config import EngineConfig
from twostroke.engine.llm_engine import LLMEngine
from twostroke.runtime.loading import load_torch_executor
from twostroke.runtime.torch_executor import TorchExecutor


@pytest.mark.parametrize("family", FAMILIES)
def test_answers_are_those_of_the_reference(family: str, tmp_path: Path) -> None:
    engine, executor = load(write_checkpoint(tmp_path, FAMILIES[family]))
    check_random_requests(engine, executor.model, Random(family))


@pytest.mark.parametrize("family", FAMILIES)
def test_swapped_kept_on_disk_and_drafted(family: str, tmp_path: Path) -> None:
    """Two engines one after the other over one folder; what the first left is found."""
    options = {
        "preemption": "swap",
        "swap_space": 2**20,
        "kv_host_memory": 2**16,
        "kv_disk": str(tmp_path / "disk"),
        "kv_disk_size": 2**24,
        "speculation": "ngram",
    }
    folder = write_checkpoint(tmp_path, FAMILIES[family])
    engine, executor = load(folder)
    states = [tensor[0].nbytes for tensor in executor.kv.recurrent.tensors()]
    blocks = 17 * engine.info.kv_groups.count  # four requests need up to 44 of each
    room = blocks * engine.info.block_bytes + 16 * sum(states)
    swapped = 0
    for _ in range(2):
        engine, executor = load(folder, **options, kv_cache_memory=room, max_model_len=64)
        check_random_requests(engine, executor.model, Random(family))
        stats = engine.last_stats.tiers
        print(stats)
        assert stats is not None
        engine.close()


def load(folder: Path, **options: Any) -> tuple[LLMEngine, TorchExecutor]:
    flat = {
        "model": str(folder),
        "device": "cpu",
        "block_size": 4,
        "max_model_len": 128,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 16,
        "kv_cache_memory": 2**18,
    }
    config = EngineConfig.from_flat(flat | options)
    executor = load_torch_executor(config)
    return LLMEngine(executor, config=config), executor
