"""Protects: in no family an answer depends on company, chunks, prefix hits or preemption."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.checkpoints import write_checkpoint
from tests.models.tiny_families import FAMILIES
from tests.runtime.mixed_models import check_random_requests
from twostroke.core.config import EngineConfig
from twostroke.engine.llm_engine import LLMEngine
from twostroke.runtime.loading import load_torch_executor


@pytest.mark.parametrize("family", FAMILIES)
def test_answers_are_those_of_the_reference(family: str, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, FAMILIES[family])
    flat = {
        "model": str(folder),
        "device": "cpu",
        "block_size": 4,
        "max_model_len": 128,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 16,
        "kv_cache_memory": 2**18,
    }
    config = EngineConfig.from_flat(flat)
    executor = load_torch_executor(config)
    engine = LLMEngine(executor, config=config)
    check_random_requests(engine, executor.model, Random(family))
