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
from twostroke.core.errors import InsufficientMemoryError
from twostroke.runtime.hooks.base import PassHook
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
