"""Protects: a hook that fails costs its own step alone, and a step's tensors end with it."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.checkpoints import tiny_config, write_checkpoint
from tests.steps import StepDriver
from twostroke.core.config import EngineConfig
from twostroke.core.errors import InsufficientMemoryError
from twostroke.core.generation_request import GenerationRequest
from twostroke.core.output import RequestOutput
from twostroke.core.request import FinishReason
from twostroke.core.sampling_params import SamplingParams
from twostroke.engine.llm_engine import LLMEngine
from twostroke.runtime.hooks.base import PassHook
from twostroke.runtime.loading import load_torch_executor
from twostroke.runtime.step_run import StepRun

PROMPT = [11, 12, 13, 14, 15]


class Failing(PassHook):
    """Raises in the method that is named, and counts the plans that it sees."""

    def __init__(self, method: str, error: Exception) -> None:
        self.num_plans = 0
        self._method, self._error = method, error

    def _do(self, method: str) -> None:
        if method == self._method:
            raise self._error

    def update(self, step: StepRun) -> None:
        self.num_plans += 1
        self._do("update")

    def before(self, step: StepRun) -> None:
        self._do("before")

    def after(self, step: StepRun) -> None:
        self._do("after")

    def close(self) -> None:
        self._do("close")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint") / "tiny", tiny_config("llama"))


@pytest.fixture
def driver(folder: Path) -> Iterator[StepDriver]:
    made = StepDriver.load(folder, block_size=4)
    yield made
    made.executor.close()


@pytest.mark.parametrize("method", ["before", "after"])
@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), MemoryError()])
def test_too_little_memory_is_said_and_nothing_is_left_in_the_cache(
    driver: StepDriver, method: str, error: Exception
) -> None:
    """As a bare ``MemoryError`` it would end the engine's thread."""
    driver.add("a", PROMPT)
    driver.executor.hooks.insert(0, Failing(method, error))
    with pytest.raises(InsufficientMemoryError):
        driver.step({"a": len(PROMPT)})
    assert not any(bool(cache.any()) for cache in driver.executor.kv.keys)


def test_a_plan_that_one_hook_refuses_is_seen_by_all(driver: StepDriver) -> None:
    """Plans say what was released once: it would stay in the executor for good."""
    driver.add("a", PROMPT)
    driver.step({"a": len(PROMPT)})
    assert driver.executor.inputs.num_live == len(driver.executor.requests) == 1
    last = Failing("", ValueError())
    driver.executor.hooks.insert(0, Failing("update", ValueError("refused")))
    driver.executor.hooks.append(last)
    driver.release("a")
    with pytest.raises(ValueError, match="refused"):
        driver.executor.execute(driver.plan({}))
    assert driver.executor.inputs.num_live == len(driver.executor.requests) == 0
    assert last.num_plans == 1


def test_the_model_is_freed_whatever_a_hook_raises_at_the_end(folder: Path) -> None:
    driver = StepDriver.load(folder, block_size=4)
    kept = weakref.ref(driver.executor.kv.keys[0])
    driver.executor.hooks.insert(0, Failing("close", OSError("a folder is gone")))
    with pytest.raises(OSError, match="a folder is gone"):
        driver.executor.close()
    driver.executor.close()
    gc.collect()
    assert kept() is None


def test_a_steps_states_are_freed_without_the_garbage_collector(driver: StepDriver) -> None:
    """On a GPU they are megabytes, which the next step may need."""
    states: list[weakref.ref[torch.Tensor]] = []

    class Watching(PassHook):
        def after(self, step: StepRun) -> None:
            assert step.hidden is not None
            states.append(weakref.ref(step.hidden))

    driver.executor.hooks.append(Watching())
    driver.add("a", PROMPT)
    gc.disable()
    try:
        driver.step({"a": len(PROMPT)})
    finally:
        gc.enable()
    assert [state() for state in states] == [None]


def test_too_little_memory_ends_a_batch_and_not_the_engine(folder: Path) -> None:
    """Again and again: other failures, three in a row, end an engine."""
    options = {"model": str(folder), "device": "cpu", "block_size": 4, "max_model_len": 64}
    config = EngineConfig.from_flat({**options, "kv_cache_memory": 2**20})
    executor = load_torch_executor(config)
    engine = LLMEngine(executor, config=config)
    params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True, detokenize=False)

    def run(name: str) -> tuple[list[int], list[RequestOutput]]:
        engine.submit(GenerationRequest(request_id=name, prompt_token_ids=PROMPT, params=params))
        outputs = list[RequestOutput]()
        while engine.has_work():
            outputs += engine.step()
        return [token for output in outputs for token in output.token_ids], outputs

    expected, _ = run("before")
    failing = Failing("before", torch.OutOfMemoryError("CUDA out of memory"))
    executor.hooks.insert(0, failing)
    for number in range(5):
        tokens, outputs = run(f"fails-{number}")
        (last,) = outputs
        assert last.finish_reason is FinishReason.ERROR and not tokens
        assert last.error is not None and "memory" in last.error.message
        assert last.error.hint is not None and "--max-num-batched-tokens" in last.error.hint
    executor.hooks.remove(failing)
    assert run("after")[0] == expected
    engine.close()
