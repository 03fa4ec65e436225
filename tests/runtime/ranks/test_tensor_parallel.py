"""Protects: an engine of two processes answers as one does, and none of them outlives another."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from tests.checkpoints import random_tensors, tiny_config, write_checkpoint
from tests.models.tiny_families import FAMILIES
from tests.runtime.mixed_models import ask, check_random_requests
from twostroke.checkpoints.open_checkpoint import open_checkpoint
from twostroke.core.config import EngineConfig
from twostroke.core.errors import ConfigError, EngineDeadError, TwostrokeError
from twostroke.engine.llm_engine import LLMEngine
from twostroke.models.decoder import Decoder
from twostroke.models.support import read_runnable
from twostroke.runtime.loading import load_torch_executor
from twostroke.runtime.ranks import processes
from twostroke.runtime.ranks.first import FirstModel
from twostroke.runtime.ranks.processes import RankProcesses
from twostroke.runtime.torch_executor import TorchExecutor
from twostroke.runtime.weights import load_model


@pytest.fixture
def threads() -> Iterator[None]:
    """Each rank takes its share of the threads that there are."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def load(folder: Path, **options: Any) -> tuple[LLMEngine, TorchExecutor]:
    flat = {
        "model": str(folder),
        "device": "cpu",
        "tensor_parallel_size": 2,
        "block_size": 4,
        "max_model_len": 128,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 16,
        "kv_cache_memory": 2**18,
    }
    config = EngineConfig.from_flat(flat | options)
    executor = load_torch_executor(config)
    return LLMEngine(executor, config=config), executor


def whole(folder: Path) -> Decoder:
    checkpoint = open_checkpoint(folder)
    return load_model(checkpoint, read_runnable(checkpoint), "auto", torch.device("cpu"), 128)


def pid_of_second(executor: TorchExecutor) -> int:
    (follower,) = others_of(executor)._followers
    return follower.process.pid


def others_of(executor: TorchExecutor) -> RankProcesses:
    return executor.hooks[0].processes  # type: ignore[attr-defined, no-any-return]


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("llama", {"speculation": "ngram"}),
        ("gemma3", {}),
        ("qwen3-moe", {}),
        ("deepseek-v3", {"enable_prefix_caching": False}),
    ],
)
def test_answers_are_those_of_one_process(
    family: str, options: dict[str, Any], tmp_path: Path, threads: None
) -> None:
    """With chunks, prefix hits, preemption and company."""
    folder = write_checkpoint(tmp_path, FAMILIES[family])
    engine, executor = load(folder, **options)
    check_random_requests(engine, whole(folder), Random(family))
    second = pid_of_second(executor)
    engine.close()
    assert not Path(f"/proc/{second}").exists()


def run_until_dead(engine: LLMEngine, seconds: float) -> EngineDeadError:
    deadline = time.monotonic() + seconds
    while engine.dead is None and time.monotonic() < deadline:
        engine.step()
    assert engine.dead is not None
    return engine.dead


@pytest.mark.parametrize("signal_", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_that_ends_or_hangs_ends_the_engine(
    signal_: signal.Signals, tmp_path: Path, threads: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "PASS_SECONDS", 3.0)
    engine, executor = load(write_checkpoint(tmp_path, tiny_config("llama")))
    second = pid_of_second(executor)
    engine.submit(ask("a", [3, 4, 5], 100, seed=1))
    for _ in range(5):
        engine.step()
    os.kill(second, signal_)
    error = run_until_dead(engine, 10)
    expected = "rank 1 was ended by SIGKILL" if signal_ == signal.SIGKILL else "hangs"
    assert expected in error.message
    with pytest.raises(EngineDeadError):
        engine.submit(ask("b", [3], 1, seed=1))
    engine.close()
    assert not Path(f"/proc/{second}").exists()


def test_a_pass_that_fails_in_one_rank_alone_ends_the_engine(
    tmp_path: Path, threads: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others wait in the middle of it, and would take the next one's numbers for this one's."""
    engine, executor = load(write_checkpoint(tmp_path, tiny_config("llama")))
    second = pid_of_second(executor)
    assert isinstance(executor.model, FirstModel)
    engine.submit(ask("a", [3, 4, 5], 100, seed=1))
    engine.step()

    def no_memory(*arguments: object) -> None:
        raise MemoryError("DefaultCPUAllocator")

    monkeypatch.setattr(executor.model.own, "forward", no_memory)
    assert "failed in the middle of a pass" in run_until_dead(engine, 5).message
    began = time.monotonic()
    engine.close()
    assert time.monotonic() - began < 10 and not Path(f"/proc/{second}").exists()


def test_memory_that_another_rank_lacks_is_said_at_the_start(tmp_path: Path, threads: None) -> None:
    engine, executor = load(write_checkpoint(tmp_path, tiny_config("llama")))
    with pytest.raises(TwostrokeError, match="memory"):
        others_of(executor).allocate(2**42)
    engine.close()


def test_a_model_that_scores_pairs_is_divided(tmp_path: Path, threads: None) -> None:
    raw = tiny_config("qwen2", architectures=["Qwen2ForSequenceClassification"], num_labels=1)
    tensors = random_tensors(raw)
    del tensors["lm_head.weight"]
    tensors["score.weight"] = torch.randn(1, raw["hidden_size"])
    engine, executor = load(write_checkpoint(tmp_path, raw, tensors))
    assert not executor.info.generates
    engine.close()


def test_a_second_one_in_the_same_process_is_refused(tmp_path: Path, threads: None) -> None:
    folder = write_checkpoint(tmp_path, tiny_config("llama"))
    engine, _ = load(folder)
    with pytest.raises(ConfigError, match="part of a group"):
        load(folder)
    engine.close()
    again, _ = load(folder)
    again.close()


def test_threads_are_given_back(tmp_path: Path, threads: None) -> None:
    torch.set_num_threads(4)
    engine, _ = load(write_checkpoint(tmp_path, tiny_config("llama")))
    assert torch.get_num_threads() == 2
    engine.close()
    assert torch.get_num_threads() == 4


def test_what_a_rank_cannot_load_is_said_by_the_first(tmp_path: Path, threads: None) -> None:
    folder = write_checkpoint(tmp_path, tiny_config("llama"))
    with pytest.raises(ConfigError, match="3 does not divide the model's 4 attention heads"):
        load(folder, tensor_parallel_size=3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"preemption": "swap", "swap_space": 2**20}, "--preemption swap"),
        ({"enable_lora": True}, "--lora and --enable-lora"),
        ({"speculation": "early-exit"}, "--speculation early-exit"),
        ({"model_impl": "transformers"}, "transformers' own code"),
    ],
)
def test_what_needs_one_process_is_refused_by_name(
    options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    folder = write_checkpoint(tmp_path, tiny_config("llama"))
    with pytest.raises(ConfigError, match=f"--tensor-parallel-size does not work with .*{message}"):
        load(folder, **options)
