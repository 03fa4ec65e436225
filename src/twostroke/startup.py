"""Puts an engine together: the one place that knows both the engine and the runtime."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from twostroke.core.config import EngineConfig
from twostroke.engine.clients.thread import STALL_SECONDS, AsyncEngine
from twostroke.engine.llm_engine import LLMEngine
from twostroke.model_spec.model_files import resolve_model
from twostroke.observability.process import age_of_process
from twostroke.observability.profile import NO_PROFILE, Profiler
from twostroke.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from twostroke.runtime.speed_probe import SpeedProbe


def load_engine(
    config: EngineConfig,
    *,
    served_model_name: str | None = None,
    profiler: Profiler = NO_PROFILE,
) -> LLMEngine:
    """Load model and tokenizer side by side.

    Args:
        served_model_name: The model's name in metrics; by default as in ``config``.
        profiler: Measures the parts of each step.

    Raises:
        ConfigError, ModelLoadError, InsufficientMemoryError: With a hint that says what to change.
    """
    _let_idle_threads_sleep()
    seconds = {"process": age_of_process()}
    folder = resolve_model(config.model.model, config.model.revision)
    with ThreadPoolExecutor(max_workers=1) as pool:
        tokenizer = pool.submit(_load_tokenizer, folder, seconds)
        began = time.perf_counter()
        from twostroke.runtime.torch_executor import TorchExecutor

        seconds["import"] = time.perf_counter() - began
        loaded_tokenizer = (
            tokenizer.result()
        )  # before the weights: what is wrong with it should be said in seconds
        executor = TorchExecutor.load(config, folder, profiler=profiler)
        seconds["ready"] = age_of_process()
        executor.info.load_seconds.update(seconds)
        return LLMEngine(
            executor,
            loaded_tokenizer,
            config,
            served_model_name=served_model_name,
            profiler=profiler,
        )


def make_speed_probe(device: str) -> SpeedProbe:
    """A probe of how fast ``--device`` is just now.

    It computes with the threads of this process's engine.
    """
    _let_idle_threads_sleep()
    from twostroke.runtime.device import resolve_device
    from twostroke.runtime.speed_probe import SpeedProbe

    return SpeedProbe(resolve_device(device))


def _load_tokenizer(folder: Path, seconds: dict[str, float]) -> Tokenizer:
    """Beside the import of torch, so its seconds are part of those."""
    began = time.perf_counter()
    tokenizer = Tokenizer.from_folder(folder)
    seconds["tokenizer"] = time.perf_counter() - began
    return tokenizer


def _let_idle_threads_sleep() -> None:
    """Let OpenMP's idle threads sleep, unless the user has set what they do.

    This must happen before torch loads OpenMP. By default its threads spin between operators.
    Where anything else wants the core of a spinning thread (here: the event loop, and the client),
    every operator then waits for the operating system to give it back. Figures in docs/lab.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def start_async_engine(
    config: EngineConfig,
    *,
    max_queued_requests: int | None = None,
    served_model_name: str | None = None,
    stall_seconds: float = STALL_SECONDS,
) -> AsyncEngine:
    """``load_engine`` on the calling thread, then the loop on a thread of its own."""
    engine = load_engine(config, served_model_name=served_model_name)
    return AsyncEngine(engine, stall_seconds=stall_seconds, max_queued_requests=max_queued_requests)
