"""Protects: swap, host memory, disk, restarts and broken files change no token of a real model."""

from __future__ import annotations

from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.engine.exactness.test_exactness import (
    FAMILIES,
    Call,
    calls,
    checkpoint,
    make_proposer,
    naive_answer,
    run,
)
from twostroke.core.config import EngineConfig
from twostroke.core.errors import ConfigError
from twostroke.core.request import FinishReason
from twostroke.engine.llm_engine import LLMEngine
from twostroke.runtime.hooks.drafts import ProposedDrafts
from twostroke.runtime.loading import load_torch_executor
from twostroke.scheduling.speculation import FixedDepth

BLOCK = 8


def config_for(family: str, num_blocks: int, **options: object) -> EngineConfig:
    token_bytes = 2 * 2 * 2 * FAMILIES[family].get("head_dim", 8) * 4
    return EngineConfig.from_flat(
        {
            "model": str(checkpoint(family)),
            "device": "cpu",
            "max_model_len": 64,
            "block_size": BLOCK,
            "kv_cache_memory": num_blocks * BLOCK * token_bytes,
            **options,
        }
    )


def spoil(folder: Path, random: Random) -> None:
    """Change, cut off or remove some of the files of blocks."""
    for file in sorted(folder.glob("*/*.kv")):
        content = bytearray(file.read_bytes())
        match random.randrange(6):
            case 0:
                content[random.randrange(len(content))] ^= 1 << random.randrange(8)
                file.write_bytes(content)
            case 1:
                file.write_bytes(content[: random.randrange(len(content))])
            case 2:
                file.unlink()


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    family=st.sampled_from(sorted(FAMILIES)),
    calls=calls(),
    budget=st.sampled_from([5, 16, 256]),
    max_num_seqs=st.sampled_from([3, 8]),
    num_blocks=st.sampled_from([8, 9, 12]),
    preemption=st.sampled_from(["recompute", "swap", "auto"]),
    host_blocks=st.sampled_from([0, 0, 2, 20]),
    disk_blocks=st.sampled_from([1, 4, 100]),
    guessing=st.sampled_from([None, None, "n-gram"]),
    seed=st.integers(0, 2**32),
)
def test_no_token_changes_over_a_restart(
    family: str,
    calls: list[Call],
    budget: int,
    max_num_seqs: int,
    num_blocks: int,
    preemption: str,
    host_blocks: int,
    disk_blocks: int,
    guessing: str | None,
    seed: int,
) -> None:
    """The same calls twice, on two engines one after the other over one folder, spoiled between."""
    block_bytes = 2 * 2 * 2 * FAMILIES[family].get("head_dim", 8) * 4 * BLOCK
    with TemporaryDirectory() as folder:
        config = config_for(
            family,
            num_blocks,
            max_num_batched_tokens=budget,
            max_num_seqs=max_num_seqs,
            preemption=preemption,
            kv_host_memory=host_blocks * (block_bytes + 400),
            kv_disk=folder,
            kv_disk_size=disk_blocks * (block_bytes + 400),
            swap_space=6 * (block_bytes + 400),
        )
        for _ in range(2):
            executor = load_torch_executor(config)
            answers = {
                (call.request.request_id, index): naive_answer(executor, call.request, index)
                for call in calls
                for index in range(call.request.params.n)
            }
            engine = LLMEngine(executor, config=config)
            if guessing is not None:
                engine.scheduler.depth = FixedDepth(3)
                executor.hooks.insert(0, ProposedDrafts(make_proposer(guessing, calls, answers)))
            outputs = run(engine, calls)
            engine.close()
            for key, (expected, expected_reason) in answers.items():
                tokens, reason = outputs.get(key, ([], FinishReason.ABORT))
                if reason is FinishReason.ABORT:
                    expected, expected_reason = expected[: len(tokens)], FinishReason.ABORT
                assert (tokens, reason) == (expected, expected_reason), f"{family}, request {key}"
            spoil(Path(folder), Random(seed))


def test_tiers_need_the_prefix_cache() -> None:
    with pytest.raises(ConfigError, match="need the prefix cache"):
        config_for("llama", 8, preemption="swap", enable_prefix_caching=False)


def test_less_than_a_block_is_a_clear_error(tmp_path: Path) -> None:
    config = config_for("llama", 8, kv_disk=str(tmp_path), kv_disk_size=10)
    with pytest.raises(ConfigError, match="less than one KV block"):
        load_torch_executor(config)
