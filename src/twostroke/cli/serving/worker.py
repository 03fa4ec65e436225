"""``twostroke worker``."""

from __future__ import annotations

import logging
import socket
from dataclasses import replace

from twostroke.cli.flags import (
    CacheFlags,
    LoraFlags,
    ModelFlags,
    ObservabilityFlags,
    SchedulerFlags,
    SpeculationFlags,
    TierFlags,
    WorkerFlags,
    engine_config,
)
from twostroke.core.config import EngineConfig
from twostroke.core.errors import ConfigError
from twostroke.core.freed_memory import share_heaps
from twostroke.engine.workers.options import WorkerOptions


def worker(
    model: str | None = None,
    /,
    *,
    options: WorkerFlags | None = None,
    model_options: ModelFlags | None = None,
    lora: LoraFlags | None = None,
    cache: CacheFlags | None = None,
    scheduler: SchedulerFlags | None = None,
    observability: ObservabilityFlags | None = None,
    speculation: SpeculationFlags | None = None,
    tiers: TierFlags | None = None,
) -> None:
    """Run a model for a router on this machine or another (twostroke route).

    It serves one router at a time, and keeps model and prefix cache when that goes. The first
    Ctrl-C, SIGTERM or SIGHUP lets running requests finish, the second ends at once.

    Args:
        model: `pilot` (embedded, the default), a local folder or GGUF file, or a Hugging Face Hub
            id; the same as --model.
    """
    from twostroke.checkpoints.open_checkpoint import find_checkpoint
    from twostroke.core.network.address import Address
    from twostroke.core.network.proofs import read_token
    from twostroke.engine.workers.fingerprint import fingerprint_of
    from twostroke.engine.workers.listener import listen_on
    from twostroke.engine.workers.run_worker import FrontEndClock, Worker, end_on_signals
    from twostroke.observability.json_log import log_to_stderr
    from twostroke.server.version import package_version
    from twostroke.startup import load_own_engine

    options = options or WorkerOptions()
    config = engine_config(
        model, *(model_options, cache, scheduler, observability, speculation, tiers, None, lora)
    )
    config = replace(config, transfer=options.transfer)
    check_config(config)
    token = read_token(options.token_file)
    log_to_stderr(options.log_level, options.log_format)
    share_heaps()
    listener = listen_on(options.address, token, package_version())  # before the model loads
    clock = FrontEndClock()
    name = str(Address(socket.gethostname(), listener.address.port))
    engine = load_own_engine(config, rank=name, clock=clock)
    assert engine.tokenizer is not None
    checkpoint = find_checkpoint(config.model.model, config.model.revision)
    fingerprint = fingerprint_of(checkpoint, engine.tokenizer, config, engine.info)
    running = Worker(engine, clock, fingerprint, listener)
    end_on_signals(running, options.shutdown_timeout)
    logger = logging.getLogger(__name__)
    logger.info(
        "worker of %s (%s) listens on %s",
        *(config.model.model, fingerprint.weights, running.address),
    )
    for place in (tier.place for tier in engine.info.tiers if tier.place):
        logger.info("it gives KV blocks of long prompts at %s", place)
    running.run()


def check_config(config: EngineConfig) -> None:
    """Raise ConfigError for what a router could not do with."""
    if config.tiers.kv_events:
        raise ConfigError(
            "--kv-events are not passed on by a router", hint="leave it out, or use twostroke serve"
        )
    if config.observability.target_file is not None:
        raise ConfigError(
            "--target-file is not read by a router, which may be on another machine",
            hint="give each target as --target",
        )
