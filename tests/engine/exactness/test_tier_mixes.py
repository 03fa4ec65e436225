"""Protects: tiers beside quantised caches, draft models and failing passes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.checkpoints import tiny_config, write_checkpoint
from tests.engine.exactness.test_window_exactness import checkpoint as windowed
from tests.server.tiny import checkpoint
from tests.spec_decode.engines import answers, make_engine, metric
from twostroke.core.generation_request import GenerationRequest
from twostroke.core.sampling_params import SamplingParams
from twostroke.core.step import StepPlan
from twostroke.engine.llm_engine import LLMEngine
from twostroke.runtime.torch_executor import TorchExecutor

PROMPT = [(7 * n) % 60 + 5 for n in range(41)]
GREEDY = SamplingParams(max_tokens=24, temperature=0, detokenize=False, ignore_eos=True)


def loaded_blocks(engine: LLMEngine) -> int:
    stats = engine.scheduler.tiers.stats()
    return 0 if stats is None else stats.loaded_blocks.get("disk", 0)


@pytest.fixture(scope="module")
def wide_heads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose heads have whole groups of 4-bit numbers."""
    raw = tiny_config("qwen3", head_dim=32, max_position_embeddings=256)
    return write_checkpoint(tmp_path_factory.mktemp("models") / "wide", raw)


@pytest.mark.parametrize("name", ["int8", "int4", "fp8"])
def test_a_quantised_block_comes_back_with_its_scales(
    name: str, wide_heads: Path, tmp_path: Path
) -> None:
    """After a restart the answer is the same as before; another format finds nothing there."""
    options: dict[str, Any] = {"model": str(wide_heads), "kv_disk": str(tmp_path)}
    expected: list[list[int]] = []
    for turn in range(2):
        engine = make_engine(kv_cache_dtype=name, **options)
        tokens = answers(engine, PROMPT, [GREEDY])
        assert (loaded_blocks(engine) > 0) == (turn == 1)
        engine.close()
        expected = expected or tokens
        assert tokens == expected
    engine = make_engine(kv_cache_dtype="int8" if name == "fp8" else "fp8", **options)
    answers(engine, PROMPT, [GREEDY])
    assert loaded_blocks(engine) == 0
    engine.close()


@pytest.mark.parametrize("kind", ["all", "mixed"])
def test_windows_find_what_they_need_on_disk_after_a_restart(kind: str, tmp_path: Path) -> None:
    """Of a window, its last blocks; the rest of the prefix is not even loaded."""
    options: dict[str, Any] = {"model": str(windowed(kind, 9, 32)), "kv_disk": str(tmp_path)}
    expected: list[list[int]] = []
    for turn in range(2):
        engine = make_engine(**options)
        tokens = answers(engine, PROMPT, [GREEDY])
        engine.scheduler.kv.check_integrity()
        groups = engine.info.kv_groups
        # Ten full blocks of the prompt; a window of 9 tokens sees the last two of them.
        needed = sum(10 if window is None else 2 for window in groups.windows)
        assert loaded_blocks(engine) == turn * needed
        engine.close()
        expected = expected or tokens
        assert tokens == expected


def test_a_draft_model_computes_its_own_of_loaded_blocks(tmp_path: Path) -> None:
    """A model that drafts for itself is always right, also behind a prefix that was loaded into
    blocks that held other texts."""
    settings = {"method": "draft", "model": str(checkpoint()), "num_speculative_tokens": 3}
    settings["adaptive"] = False
    options: dict[str, Any] = {"max_num_batched_tokens": 16, "max_model_len": 80}
    plain, expected = make_engine(**options), []
    others = [[token + n for token in PROMPT] for n in range(1, 5)]
    options |= {"kv_disk": str(tmp_path), "speculative_config": settings}
    engine = make_engine(kv_cache_memory=_bytes_of_blocks(24), **options)
    for prompt in (PROMPT, *others, PROMPT):
        expected = answers(plain, prompt, [GREEDY])
        assert answers(engine, prompt, [GREEDY]) == expected
    assert loaded_blocks(engine) > 0
    drafted = metric(engine, "vllm:spec_decode_num_draft_tokens_total")
    assert metric(engine, "vllm:spec_decode_num_accepted_tokens_total") == drafted > 0
    engine.close()


def _bytes_of_blocks(count: int) -> int:
    """Of two caches of the tiny model in float32, blocks of four tokens."""
    kv = make_engine().scheduler.kv.pool.num_blocks  # of 1 MiB
    return 2 * count * (2**20 // kv)


def test_a_step_that_fails_early_holds_up_no_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request that waits for blocks gets them, whatever became of the step's other parts."""
    engine = make_engine(kv_disk=str(tmp_path))
    expected = answers(engine, PROMPT, [GREEDY])
    engine.close()
    engine = make_engine(kv_disk=str(tmp_path))
    executor = engine.executor
    assert isinstance(executor, TorchExecutor)
    update, calls = executor.requests.update, 0

    def fail_once(plan: StepPlan) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            assert plan.block_loads
            raise RuntimeError("no luck")
        update(plan)

    monkeypatch.setattr(executor.requests, "update", fail_once)
    call = GenerationRequest(request_id="0", prompt_token_ids=PROMPT, params=GREEDY)
    engine.submit(call)
    tokens: list[int] = []
    for _ in range(200):
        if not engine.has_work():
            break
        for output in engine.step():
            tokens += output.token_ids
    assert tokens == expected[0] and loaded_blocks(engine) > 0
    engine.close()
