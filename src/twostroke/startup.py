"""Puts an engine together: the one place that knows both the engine and the runtime."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twostroke.checkpoints.checkpoint import Checkpoint
from twostroke.checkpoints.open_checkpoint import find_checkpoint
from twostroke.checkpoints.quantised.written import Quantised
from twostroke.constraints.compiler import GrammarCompiler
from twostroke.core.config import EngineConfig
from twostroke.core.errors import ModelLoadError, is_panic, panic_text
from twostroke.core.operator.chat_template_config import ChatTemplateConfig
from twostroke.engine.adapters.registry import Adapters
from twostroke.engine.llm_engine import LLMEngine
from twostroke.observability.observer import Observer
from twostroke.observability.process import age_of_process
from twostroke.observability.profile import NO_PROFILE, Profiler
from twostroke.observability.tracing.stations import CallStations
from twostroke.text.own_template import apply_template
from twostroke.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from twostroke.models.catalogue import CheckpointSurvey
    from twostroke.runtime.speed_probe import SpeedProbe

CallsTaker = Callable[[], Sequence[CallStations]]


def load_own_engine(config: EngineConfig, **options: Any) -> LLMEngine:
    """``load_engine`` for a process that is this engine's own, and ends with any of its ranks."""
    engine = load_engine(config, **options)
    from twostroke.runtime.ranks.watch import end_with_ranks

    end_with_ranks(engine.executor)
    return engine


def load_engine(
    config: EngineConfig,
    *,
    served_model_name: str | None = None,
    profiler: Profiler = NO_PROFILE,
    observers: Sequence[Observer] = (),
    take_calls: CallsTaker | None = None,
    rank: int | str = 0,
    clock: Callable[[], float] = time.monotonic,
) -> LLMEngine:
    """Load model and tokenizer side by side.

    Args:
        served_model_name: The model's name in metrics; by default as in ``config``.
        profiler: Measures the parts of each step.
        observers, take_calls, rank, clock: See ``LLMEngine``.

    Raises:
        ConfigError, ModelLoadError, InsufficientMemoryError: With a hint that says what to change.
    """
    try:
        return _load(config, served_model_name, profiler, observers, take_calls, rank, clock)
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
    rank: int | str,
    clock: Callable[[], float],
) -> LLMEngine:
    _let_idle_threads_sleep()
    seconds = {"process": age_of_process()}
    config.observability.targets()  # what is wrong with the file is said before the model loads
    config.chat.source()
    checkpoint = find_checkpoint(config.model.model, config.model.revision)
    with ThreadPoolExecutor(max_workers=1) as pool:
        tokenizer = pool.submit(load_tokenizer, checkpoint, config.chat, seconds)
        began = time.perf_counter()
        from twostroke.runtime.choose_executor import load_executor

        seconds["import"] = time.perf_counter() - began
        loaded_tokenizer = (
            tokenizer.result()
        )  # before the weights: what is wrong with it should be said in seconds
        grammars = GrammarCompiler(loaded_tokenizer)
        adapters = Adapters(config.adapters)
        executor = load_executor(
            config, checkpoint, profiler=profiler, grammars=grammars, adapters=adapters
        )
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
            adapters=adapters,
            rank=rank,
            clock=clock,
        )


def survey_checkpoint(model: str) -> CheckpointSurvey:
    """Whether a model runs here, and how; ``model`` as in ``resolve_model``.

    Raises:
        ModelLoadError: It does not, or there is none.
    """
    from twostroke.runtime.checkpoints.survey import read_survey

    return read_survey(find_checkpoint(model))


def quantise_checkpoint(
    checkpoint: Checkpoint,
    to: str,
    folder: Path,
    begin: Callable[[int], None],
    advance: Callable[[int], None],
    *,
    head: bool,
) -> Quantised:
    """Write a rounded copy of a checkpoint, see ``runtime/checkpoints/quantise.py``.

    Args:
        begin: Called with the number of bytes to read.
        advance: Called with each number of bytes that were read.
    """
    from twostroke.runtime.checkpoints.quantise import check_quantisable, quantise

    check_quantisable(checkpoint)
    begin(sum(stored.nbytes for stored in checkpoint.tensors().values()))
    return quantise(checkpoint, to, folder, advance, head=head)


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


def load_tokenizer(
    checkpoint: Checkpoint, chat: ChatTemplateConfig, seconds: dict[str, float] | None = None
) -> Tokenizer:
    """The tokenizer, with the chat template that the operator wants.

    Args:
        seconds: Gets the time that it took; where it is loaded while torch is imported, that is
            part of the import's.
    """
    began = time.perf_counter()
    tokenizer = checkpoint.tokenizer()
    apply_template(tokenizer, chat)
    if seconds is not None:
        seconds["tokenizer"] = time.perf_counter() - began
    return tokenizer


def _let_idle_threads_sleep() -> None:
    """Let OpenMP's idle threads sleep, unless the user has set what they do.

    This must happen before torch loads OpenMP. By default its threads spin between operators.
    Where anything else wants the core of a spinning thread (here: the event loop, and the client),
    every operator then waits for the operating system to give it back. Figures in docs/lab.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
