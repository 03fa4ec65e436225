"""Pools of scripted engines, in processes of their own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from tests.engine.process.scripted_engine import VERSION
from tests.engine.process.scripted_process import alive, pid_of
from tests.text.tiny_tokenizers import byte_level
from twostroke.constraints.compiler import GrammarCompiler
from twostroke.core.config import EngineConfig
from twostroke.engine.fleet.engine_pool import EnginePool, FirstReplica
from twostroke.engine.fleet.pool_keeper import PoolKeeper
from twostroke.engine.fleet.pool_plan import PoolOptions, PoolPlan, start_of
from twostroke.engine.fleet.supervised import SupervisedSource
from twostroke.engine.process.engine_process import EngineProcess
from twostroke.engine.process.handshake import StartEngine
from twostroke.routing.autoscaler import AutoscalerOptions
from twostroke.routing.make_router import make_router
from twostroke.text.tokenizer import Tokenizer

REFUSED, CRASHES = 13, 14  # --max-num-seqs of replicas that cannot be started
NAMES = {REFUSED: "refused", CRASHES: "gone"}


def plan_of(
    replicas: int = 2,
    scaling: AutoscalerOptions | None = None,
    drain_timeout: float = 30.0,
    **flags: Any,
) -> PoolPlan:
    options = PoolOptions(replicas=replicas, drain_timeout=drain_timeout)
    return PoolPlan(EngineConfig.from_flat(flags), options, scaling or AutoscalerOptions())


def changed(plan: PoolPlan, **flags: Any) -> PoolPlan:
    """The plan with another configuration of its replicas."""
    return plan._replace(config=EngineConfig.from_flat(flags))


def with_options(plan: PoolPlan, **options: Any) -> PoolPlan:
    return plan._replace(options=replace(plan.options, **options))


def keeper_of(pool: EnginePool) -> PoolKeeper:
    """The only one."""
    (keeper,) = pool.keepers.values()
    return keeper


def pids_of(pool: EnginePool) -> list[int]:
    return [pid_of(engine) for engine in pool.engines]


@contextmanager
def running(plan: PoolPlan, stall_seconds: float = 60.0) -> Iterator[EnginePool]:
    """A pool of which no process may be left behind."""

    def prepare(plan: PoolPlan, number: int) -> SupervisedSource:
        name = NAMES.get(plan.config.scheduler.max_num_seqs or 0, "chat")
        return SupervisedSource(start_of(StartEngine(VERSION, plan.config, name), plan, number))

    tokenizer = Tokenizer(byte_level())
    make = partial(
        EngineProcess,
        tokenizer=tokenizer,
        grammars=GrammarCompiler(tokenizer),
        stall_seconds=stall_seconds,
    )
    sources = [prepare(plan, number) for number in range(plan.num_at_first)]
    first = [
        FirstReplica("chat", number, source, source.start())
        for number, source in enumerate(sources)
    ]
    pool = EnginePool("chat", {"chat": plan}, make_router("least-loaded"), prepare, make, first)
    pids = set(pids_of(pool))
    try:
        yield pool
    finally:
        pids |= set(pids_of(pool))
        pool.close()
    for thread in threading.enumerate():
        if thread.name in ("twostroke-end-engine", "twostroke-start-engine"):
            thread.join(30)
            assert not thread.is_alive()
    assert not any(alive(pid) for pid in pids)
