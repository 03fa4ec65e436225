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
from tests.runtime.mixed_models import ask, check_random_requests
from twostroke.core.config import EngineConfig
from twostroke.engine.llm_engine import LLMEngine
from twostroke.runtime.loading import load_torch_executor
from twostroke.runtime.reference import generate_naive
from twostroke.runtime.torch_executor import TorchExecutor


@pytest.mark.parametrize("family", FAMILIES)
def test_answers_are_those_of_the_reference(family: str, tmp_path: Path) -> None:
    engine, executor = load(write_checkpoint(tmp_path, FAMILIES[family]))
    check_random_requests(engine, executor.model, Random(family))


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_on_disk_is_found_and_drafts_change_nothing(family: str, tmp_path: Path) -> None:
    """Two engines one after the other over one folder, with little host memory between."""
    folder, disk = write_checkpoint(tmp_path, FAMILIES[family]), str(tmp_path / "disk")
    loaded = []
    for _ in range(2):
        options = {"kv_host_memory": 2**16, "kv_disk": disk, "kv_disk_size": 2**24}
        engine, executor = load(folder, speculation="ngram", **options)
        check_random_requests(engine, executor.model, Random(family))
        stats = engine.last_stats.tiers
        assert stats is not None
        loaded.append(stats.loaded_blocks.get("disk", 0))
        engine.close()
    assert loaded[0] < loaded[1]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_swapped_request_goes_on(family: str, tmp_path: Path) -> None:
    """No block is left while two grow: one gives way, and comes back with blocks and state."""
    folder = write_checkpoint(tmp_path, FAMILIES[family])
    engine, executor = load(folder, preemption="swap", swap_space=2**20)
    pool, drawn, taken = engine.scheduler.kv.pool, Random(family), list[int]()
    asked = [ask(name, drawn.choices(range(3, 90), k=20), 30, seed=5) for name in "ab"]
    answers: dict[str, list[int]] = {"a": [], "b": []}
    for request in asked:
        engine.submit(request)
    stats = None
    for _ in range(200):
        for output in engine.step():
            answers[output.request_id] += output.token_ids
        stats = engine.last_stats.tiers
        assert stats is not None
        if all(answers.values()) and not stats.swapped_out:
            taken += [pool.allocate() for _ in range(pool.num_free)]
        while stats.swapped_out and taken:
            pool.release(taken.pop())
    engine.scheduler.kv.check_integrity()
    assert not engine.has_work() and stats is not None
    assert stats.swapped_in == stats.swapped_out > 0
    for request in asked:
        expected, _ = generate_naive(
            executor.model, request.prompt_token_ids, request.params, seed=5, max_total_tokens=128
        )
        assert answers[request.request_id] == expected
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
