"""Starts a loaded engine on a thread of its own, for front ends that wait for its answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from twostroke.checkpoints.open_checkpoint import find_checkpoint
from twostroke.core.config import CacheConfig, EngineConfig, ModelOptions, SchedulerOptions
from twostroke.engine.clients.loaded_model import LoadedModel
from twostroke.engine.clients.thread import STALL_SECONDS, AsyncEngine
from twostroke.model_spec.reader import parse_model
from twostroke.model_spec.vectors.encoder_spec import is_encoder
from twostroke.observability.observer import Observer
from twostroke.startup import CallsTaker, load_engine

# Of a decoder that ranks documents: most tokens of a pair, and how many such pairs its cache holds.
RANKED_TOKENS, RANKED_AT_ONCE = 8192, 2


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
    """Start the engine, and return it with what a front end needs beside it."""
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
    checkpoint = find_checkpoint(model)
    options = ModelOptions(model=model, device=config.model.device, runner="pooling")
    cache = config.cache
    if not is_encoder(checkpoint.config):
        spec = parse_model(checkpoint.config, checkpoint.generation)
        length = min(spec.context_length, RANKED_TOKENS)
        options = replace(options, max_model_len=length)
        num_tokens = RANKED_AT_ONCE * (length + cache.block_size)
        num_bytes = num_tokens * int(spec.kv_bytes_per_token(spec.dtype or "float32"))
        cache = CacheConfig(block_size=cache.block_size, kv_cache_memory=num_bytes)
    # Keys share it as they share the served model.
    scheduler = SchedulerOptions(policy="fair" if config.scheduler.policy == "fair" else "fcfs")
    own = EngineConfig(model=options, cache=cache, scheduler=scheduler)
    return start_model(own, stall_seconds=stall_seconds)
