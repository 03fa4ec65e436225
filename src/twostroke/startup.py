"""Puts an engine together: the one place that knows both the engine and the runtime."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twostroke.constraints.compiler import GrammarCompiler
from twostroke.core.config import CacheConfig, EngineConfig, ModelOptions, SchedulerOptions
from twostroke.core.errors import ModelLoadError, is_panic, panic_text
from twostroke.core.operator.chat_template_config import ChatTemplateConfig
from twostroke.engine.clients.loaded_model import LoadedModel
from twostroke.engine.clients.thread import STALL_SECONDS, AsyncEngine
from twostroke.engine.llm_engine import LLMEngine
from twostroke.model_spec.json_files import read_object
from twostroke.model_spec.model_files import resolve_model
from twostroke.model_spec.reader import read_model
from twostroke.model_spec.vectors.encoder_spec import is_encoder
from twostroke.observability.observer import Observer
from twostroke.observability.process import age_of_process
from twostroke.observability.profile import NO_PROFILE, Profiler
from twostroke.observability.tracing.stations import CallStations
from twostroke.text.own_template import apply_template
from twostroke.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from twostroke.runtime.speed_probe import SpeedProbe

# Of a decoder that ranks documents: most tokens of a pair, and how many such pairs its cache holds.
RANKED_TOKENS, RANKED_AT_ONCE = 8192, 2
CallsTaker = Callable[[], Sequence[CallStations]]


def load_engine(
    config: EngineConfig,
    *,
    served_model_name: str | None = None,
    profiler: Profiler = NO_PROFILE,
    observers: Sequence[Observer] = (),
    take_calls: CallsTaker | None = None,
) -> LLMEngine:
    """Load model and tokenizer side by side.

    Args:
        served_model_name: The model's name in metrics; by default as in ``config``.
        profiler: Measures the parts of each step.
        observers, take_calls: See ``LLMEngine``.

    Raises:
        ConfigError, ModelLoadError, InsufficientMemoryError: With a hint that says what to change.
    """
    try:
        return _load(config, served_model_name, profiler, observers, take_calls)
    except BaseException as error:
        if not is_panic(error):
            raise
        raise ModelLoadError(
            f"a library failed while it read the checkpoint: {panic_text(error)}",
            hint="the checkpoint is broken; download it again",
        ) from error


def _load(
    config: EngineConfig,
    served_model_name: str | None,
    profiler: Profiler,
    observers: Sequence[Observer],
    take_calls: CallsTaker | None,
) -> LLMEngine:
    _let_idle_threads_sleep()
    seconds = {"process": age_of_process()}
    config.observability.targets()  # what is wrong with the file is said before the model loads
    config.chat.source()
    folder = resolve_model(config.model.model, config.model.revision)
    with ThreadPoolExecutor(max_workers=1) as pool:
        tokenizer = pool.submit(_load_tokenizer, folder, config.chat, seconds)
        began = time.perf_counter()
        from twostroke.runtime.choose_executor import load_executor

        seconds["import"] = time.perf_counter() - began
        loaded_tokenizer = (
            tokenizer.result()
        )  # before the weights: what is wrong with it should be said in seconds
        grammars = GrammarCompiler(loaded_tokenizer)
        executor = load_executor(config, folder, profiler=profiler, grammars=grammars)
        seconds["ready"] = age_of_process()
        executor.info.load_seconds.update(seconds)
        return LLMEngine(
            executor,
            loaded_tokenizer,
            config,
            served_model_name=served_model_name,
            observers=observers,
            profiler=profiler,
            grammars=grammars,
            take_calls=take_calls,
        )


def make_speed_probe(device: str) -> SpeedProbe:
    """A probe of how fast ``--device`` is just now.

    It computes with the threads of this process's engine.
    """
    _let_idle_threads_sleep()
    from twostroke.runtime.device import resolve_device
    from twostroke.runtime.speed_probe import SpeedProbe

    return SpeedProbe(resolve_device(device))


def name_of_device(device: str) -> str:
    """What a device calls itself; empty for a processor."""
    if device.startswith("cpu"):
        return ""
    from twostroke.runtime.device import name_of_gpu

    return name_of_gpu(device)


def _load_tokenizer(folder: Path, chat: ChatTemplateConfig, seconds: dict[str, float]) -> Tokenizer:
    """Beside the import of torch, so its seconds are part of those."""
    began = time.perf_counter()
    tokenizer = Tokenizer.from_folder(folder)
    apply_template(tokenizer, chat)
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
    observers: Sequence[Observer] = (),
    take_calls: CallsTaker | None = None,
) -> AsyncEngine:
    """``load_engine`` on the calling thread, then the loop on a thread of its own."""
    engine = load_engine(
        config,
        served_model_name=served_model_name,
        observers=observers,
        take_calls=take_calls,
    )
    return AsyncEngine(engine, stall_seconds=stall_seconds, max_queued_requests=max_queued_requests)


def start_model(config: EngineConfig, **settings: Any) -> LoadedModel:
    """The same for a front end, with what it needs beside the engine."""
    return start_async_engine(config, **settings).loaded_model()


def start_ranker(
    config: EngineConfig, *, model: str, stall_seconds: float = STALL_SECONDS
) -> LoadedModel:
    """The model that ranks documents of chats, beside that of ``config`` and on its device.

    Its requests are prompts of ``RANKED_TOKENS`` at most, so that its KV cache is small.

    Args:
        model: A folder or a Hugging Face Hub id.

    Raises:
        ConfigError, ModelLoadError, InsufficientMemoryError: As ``load_engine``.
    """
    folder = resolve_model(model)
    options = ModelOptions(model=model, device=config.model.device, runner="pooling")
    cache = config.cache
    if not is_encoder(read_object(folder / "config.json")):
        spec = read_model(folder)
        length = min(spec.context_length, RANKED_TOKENS)
        options = replace(options, max_model_len=length)
        num_tokens = RANKED_AT_ONCE * (length + cache.block_size)
        num_bytes = num_tokens * int(spec.kv_bytes_per_token(spec.dtype or "float32"))
        cache = CacheConfig(block_size=cache.block_size, kv_cache_memory=num_bytes)
    # Keys share it as they share the served model.
    scheduler = SchedulerOptions(policy="fair" if config.scheduler.policy == "fair" else "fcfs")
    own = EngineConfig(model=options, cache=cache, scheduler=scheduler)
    return start_model(own, stall_seconds=stall_seconds)
