"""Starts a loaded engine on a thread of its own, for front ends that wait for its answers."""

from __future__ import annotations

import atexit
import logging
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from twostroke.checkpoints.open_checkpoint import find_checkpoint
from twostroke.constraints.compiler import GrammarCompiler
from twostroke.core.config import CacheConfig, EngineConfig, ModelOptions, SchedulerOptions
from twostroke.core.errors import ConfigError
from twostroke.core.kv_tier_config import KVTransferConfig, peer_name
from twostroke.core.network.address import Address
from twostroke.core.operator.named_models import with_share
from twostroke.engine.clients.base import EngineClient
from twostroke.engine.clients.loaded_model import LoadedModel
from twostroke.engine.clients.thread import STALL_SECONDS, AsyncEngine
from twostroke.engine.fleet.engine_pool import EnginePool, FirstReplica
from twostroke.engine.fleet.pool_plan import PoolPlan, start_of
from twostroke.engine.fleet.supervised import SourceMaker, SupervisedSource, local_source
from twostroke.engine.intake import Seeds
from twostroke.engine.process.engine_process import EngineProcess
from twostroke.engine.process.engine_source import StartedEngine
from twostroke.engine.process.handing_on import NO_POOL, PrefillPlan, PrefillPool
from twostroke.engine.process.handshake import StartEngine
from twostroke.engine.process.process_link import ProcessSource, start_engine
from twostroke.engine.process.replicas import Replicas
from twostroke.engine.workers.connect import WorkerSource, first_worker, unreached
from twostroke.engine.workers.fingerprint import vocabulary_hash
from twostroke.model_spec.reader import parse_model
from twostroke.model_spec.vectors.encoder_spec import is_encoder
from twostroke.observability.observer import Observer
from twostroke.observability.recorder import Recorder
from twostroke.observability.tracing.engine_timelines import EngineTraces
from twostroke.routing.make_router import Routing, make_router
from twostroke.server.version import package_version
from twostroke.startup import CallsTaker, load_engine, load_tokenizer

logger = logging.getLogger(__name__)
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


def start_engine_process(
    config: EngineConfig,
    *,
    served_model_name: str | None = None,
    log_level: str = "info",
    log_json: bool = False,
    take_calls: CallsTaker | None = None,
    stall_seconds: float = STALL_SECONDS,
    max_queued_requests: int | None = None,
    idle_seconds: float | None = None,
    num_replicas: int = 1,
    prefill: PrefillPlan = NO_POOL.plan,
    routing: Routing = Routing(),  # noqa: B008  (a value)
    traces: EngineTraces | None = None,
) -> LoadedModel:
    """Start the engine in a process of its own; the tokenizer is loaded here meanwhile.

    Args:
        log_level, log_json: Settings of the engine's log, which goes to the same place.
        take_calls: See ``Recorder``. What is to be recorded is written by this process.
        num_replicas: How many engines there are, which divide memory and cores.
        prefill: How many of them compute prompts alone, and which.
        routing: How requests are spread over them.
        traces: Follows traced calls, if some are.

    Raises:
        ConfigError, ModelLoadError, InsufficientMemoryError: As ``load_engine``.
    """
    watched = config.observability
    recorder = Recorder(1, watched.record, take_calls) if watched.record is not None else None
    own = replace(config, observability=replace(watched, record=None))
    first = StartEngine(
        package_version(), own, served_model_name, log_level=log_level, log_json=log_json
    )
    starts, pool = with_prefill(start_of_each(first, num_replicas), prefill)
    # Downloaded here, if it is on the Hub: an engine that waits for others would seem to hang.
    checkpoint = find_checkpoint(config.model.model, config.model.revision)
    with ThreadPoolExecutor(max_workers=num_replicas) as threads:
        starting = [threads.submit(start_engine, start) for start in starts]
        tokenizer = load_tokenizer(checkpoint, config.chat)
        grammars = GrammarCompiler(tokenizer)
        wait(starting)
    stop_unless_all(starting)
    seeds = Seeds(config.model.seed)
    queued_each = None if max_queued_requests is None else -(-max_queued_requests // num_replicas)
    engines = [
        EngineProcess(
            ProcessSource(start, alone=num_replicas == 1),
            started.result(),
            tokenizer=tokenizer,
            grammars=grammars,
            recorder=None if start.rank else recorder,
            stall_seconds=stall_seconds,
            max_queued_requests=queued_each,
            idle_seconds=idle_seconds,
            seeds=seeds,
        )
        for start, started in zip(starts, starting, strict=True)
    ]
    return LoadedModel(spread(engines, routing, traces, pool), tokenizer, grammars)


def spread(
    engines: list[EngineProcess],
    routing: Routing,
    traces: EngineTraces | None,
    pool: PrefillPool = NO_POOL,
) -> EngineClient:
    """One client of all the engines."""
    if len(engines) == 1:
        engines[0].timelines = None if traces is None else traces.timelines()
        return engines[0]
    return Replicas(engines, make_router(routing.router), pool, routing.slow_start, traces)


def connect_to_workers(
    config: EngineConfig,
    *,
    workers: Sequence[Address],
    token: bytes,
    routing: Routing,
    prefill: PrefillPlan,
    say: Callable[[str], None],
    stall_seconds: float = STALL_SECONDS,
    max_queued_requests: int | None = None,
    traces: EngineTraces | None = None,
) -> LoadedModel:
    """Wait for the first worker; the others are connected to as they come.

    Args:
        config: The model, whose tokenizer is loaded here, and its chat template; the rest is the
            workers' own.
        routing: How requests are spread over the workers.
        prefill: Which prompts go to workers of role ``prefill``, if there are some.
        say: Called with what is waited for.
        traces: Follows traced calls, if some are.

    Raises:
        ConfigError: Every worker refuses this router, or has another tokenizer.
        ModelLoadError: The tokenizer cannot be loaded here.
    """
    version = package_version()
    tokenizer = load_tokenizer(
        find_checkpoint(config.model.model, config.model.revision), config.chat
    )
    grammars = GrammarCompiler(tokenizer)
    first, link, welcome = first_worker(workers, token, version, say)
    if welcome.model.tokenizer != vocabulary_hash(tokenizer):
        link.close()
        raise ConfigError(
            f"{link.name} has {welcome.model.name}, whose tokenizer is not that of"
            f" {config.model.model}",
            hint="give this command the MODEL of the workers",
        )
    if config.scheduler.policy not in (None, welcome.facts.scheduler_config.policy):
        logger.warning("keys share workers by --policy fair alone; give it to them")
    theirs = replace(welcome.config, chat=config.chat)
    seeds = Seeds(theirs.model.seed)
    queued_each = None if max_queued_requests is None else -(-max_queued_requests // len(workers))
    engines = [
        EngineProcess(
            WorkerSource(address, token, version, theirs, welcome.model),
            StartedEngine(link, welcome.facts)
            if address == first
            else unreached(address, welcome.facts),
            tokenizer=tokenizer,
            grammars=grammars,
            stall_seconds=stall_seconds,
            max_queued_requests=queued_each,
            seeds=seeds,
        )
        for address in workers
    ]
    client = spread(engines, routing, traces, PrefillPool(plan=prefill))
    return LoadedModel(client, tokenizer, grammars)


def start_pool(
    config: EngineConfig,
    *,
    name: str,
    plans: Mapping[str, PoolPlan],
    routing: Routing,
    prompts: PrefillPlan = NO_POOL.plan,
    make_source: SourceMaker = local_source,
    log_level: str = "info",
    log_json: bool = False,
    stall_seconds: float = STALL_SECONDS,
    max_queued_requests: int | None = None,
    traces: EngineTraces | None = None,
) -> LoadedModel:
    """Start the first replicas of a model's pools, which then look after themselves.

    Args:
        config: That of the first plan.
        name: What the model is called.
        plans: Its pools, by their names, as the server's keys want them.
        prompts: Which prompts go to replicas of role ``prefill``, if there are some.
        make_source: Makes what starts a replica; processes of this machine by default.
        traces: Follows traced calls, if some are.

    Raises:
        ConfigError, ModelLoadError, InsufficientMemoryError: As ``load_engine``.
    """
    first = StartEngine(package_version(), config, name, log_level=log_level, log_json=log_json)
    token_file = shared_secret() if len(plans) > 1 else ""

    def prepare(plan: PoolPlan, number: int) -> SupervisedSource:
        return make_source(start_of(first, plan, number, token_file), plan)

    pools = [pool for pool, plan in plans.items() for _ in range(plan.num_at_first)]
    sources = [prepare(plans[pool], number) for number, pool in enumerate(pools)]
    # Downloaded here, if it is on the Hub: an engine that waits for others would seem to hang.
    checkpoint = find_checkpoint(config.model.model, config.model.revision)
    with ThreadPoolExecutor(max_workers=len(sources)) as threads:
        starting = [threads.submit(source.start) for source in sources]
        tokenizer = load_tokenizer(checkpoint, config.chat)
        grammars = GrammarCompiler(tokenizer)
        wait(starting)
    stop_unless_all(starting)
    ready = [
        FirstReplica(pool, number, source, future.result())
        for number, (pool, source, future) in enumerate(zip(pools, sources, starting, strict=True))
    ]
    queued_each = None if max_queued_requests is None else -(-max_queued_requests // len(sources))
    make = partial(
        EngineProcess,
        tokenizer=tokenizer,
        grammars=grammars,
        stall_seconds=stall_seconds,
        max_queued_requests=queued_each,
        seeds=Seeds(config.model.seed),
    )
    router, pool = make_router(routing.router), PrefillPool(plan=prompts)
    client = EnginePool(name, plans, router, prepare, make, ready, pool, routing.slow_start, traces)
    return LoadedModel(client, tokenizer, grammars)


def shared_secret() -> str:
    """A file that only this user can read, with what replicas know that give each other blocks."""
    path = Path(_own_folder(), "token")
    path.write_text(secrets.token_hex(32))
    return str(path)


def start_of_each(first: StartEngine, num_replicas: int) -> list[StartEngine]:
    """How each of several engines is started, so that they share memory and cores."""
    if num_replicas == 1:
        return [first]
    threads = max(1, (os.cpu_count() or 1) // num_replicas)
    config = with_share(first.config, 1 / num_replicas)
    starts = []
    for rank in range(num_replicas):
        tiers = config.tiers
        if tiers.kv_disk is not None:
            tiers = replace(tiers, kv_disk=f"{tiers.kv_disk}/{rank}")
        own = replace(config, tiers=tiers)
        starts.append(msgspec.structs.replace(first, config=own, rank=rank, num_threads=threads))
    return starts


def with_prefill(
    starts: list[StartEngine], plan: PrefillPlan
) -> tuple[list[StartEngine], PrefillPool]:
    """Have the last engines offer the blocks of prompts, and the others fetch them."""
    if not plan.num_engines:
        return starts, NO_POOL
    folder = _own_folder()
    first = len(starts) - plan.num_engines
    places = [f"{folder}/{number}" for number in range(plan.num_engines)]
    own = []
    for index, start in enumerate(starts):
        if index < first:
            transfer = KVTransferConfig(kv_fetched_from=tuple(places))
        else:
            place = places[index - first]
            transfer = KVTransferConfig(kv_offered_at=place, kv_offered_memory=plan.memory)
        config = replace(start.config, transfer=transfer)
        own.append(msgspec.structs.replace(start, config=config))
    tiers = {first + number: peer_name(number) for number in range(plan.num_engines)}
    return own, PrefillPool(tiers, plan)


def _own_folder() -> str:
    """A folder that only this user can open, and that goes with this process."""
    folder = tempfile.mkdtemp(prefix="twostroke-blocks-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def stop_unless_all(starting: Sequence[Future[StartedEngine]]) -> None:
    """End those that have started, and raise, if one has not."""
    failed = [error for future in starting if (error := future.exception()) is not None]
    if failed:
        for future in starting:
            if future.exception() is None:
                future.result().link.close()
        raise failed[0]


def start_ranker(
    config: EngineConfig,
    *,
    model: str,
    stall_seconds: float = STALL_SECONDS,
    engine_process: bool = False,
) -> LoadedModel:
    """The model that ranks documents of chats, beside that of ``config`` and on its device.

    Its requests are prompts of ``RANKED_TOKENS`` at most, so that its KV cache is small.

    Args:
        model: A folder or a Hugging Face Hub id.
        engine_process: Whether it gets a process of its own.

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
    if engine_process:
        return start_engine_process(own, stall_seconds=stall_seconds)
    return start_model(own, stall_seconds=stall_seconds)
