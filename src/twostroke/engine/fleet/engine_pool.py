"""The replicas of one model: started, watched, scaled and replaced while they serve."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from twostroke.engine.clients.engine_view import EnginePart, EngineView
from twostroke.engine.fleet.pool_keeper import PoolKeeper
from twostroke.engine.fleet.pool_plan import PoolPlan
from twostroke.engine.fleet.pool_series import pool_exposition
from twostroke.engine.fleet.supervised import SupervisedSource
from twostroke.engine.messages import EngineRecords
from twostroke.engine.process.engine_process import EngineProcess
from twostroke.engine.process.engine_source import StartedEngine
from twostroke.engine.process.handing_on import NO_POOL, PrefillPool
from twostroke.engine.process.on_loop import do_on_loop
from twostroke.engine.process.replicas import Replicas
from twostroke.observability.tracing.engine_timelines import EngineTraces
from twostroke.routing.routers import Router

logger = logging.getLogger(__name__)
TICK_SECONDS = 0.1


class FirstReplica(NamedTuple):
    """A replica that is there before the first request, with the name of its pool."""

    pool: str
    number: int
    source: SupervisedSource
    started: StartedEngine


class EnginePool(Replicas):
    """Implements ``EngineClient`` for replicas that come and go, of one pool or of several.

    Several pools of one model differ by their roles, or by where they are. A ``PoolKeeper`` looks
    after each, ten times a second.

    Args:
        name: The model's, for people.
        plans: How each pool is to be, by its name.
        prepare: The source of a replica by its number.
        make: A client of an engine that has started.
        first: Those that have started already.
        prompts: Which prompts go to replicas of role ``prefill``.
        slow_start, traces: See ``Replicas``.
    """

    def __init__(
        self,
        name: str,
        plans: Mapping[str, PoolPlan],
        router: Router[int],
        prepare: Callable[[PoolPlan, int], SupervisedSource],
        make: Callable[[SupervisedSource, StartedEngine], EngineProcess],
        first: Sequence[FirstReplica],
        prompts: PrefillPool = NO_POOL,
        slow_start: float = 0.0,
        traces: EngineTraces | None = None,
    ) -> None:
        super().__init__([], router, prompts, slow_start, traces)
        self.name = name
        self.keepers = {
            pool: PoolKeeper(pool, plan, self, prepare, make, self._taken_numbers)
            for pool, plan in plans.items()
        }
        for each in first:
            self.keepers[each.pool].take(each.number, each.source, each.started)
        self._closing = threading.Event()
        self._thread = threading.Thread(
            target=self._supervise, name=f"twostroke-pool-{name}", daemon=True
        )
        self._thread.start()

    def update(self, plans: Mapping[str, PoolPlan]) -> None:
        """Have the pools be like this from now on; on any thread but the event loop's."""

        def update_all() -> None:
            for pool, plan in plans.items():
                self.keepers[pool].update(plan)

        do_on_loop(self.loop, update_all, self._closing.is_set)

    async def records(self) -> EngineRecords:
        records = await super().records()
        own = pool_exposition(self.name, list(self.keepers.values()))
        return EngineRecords(records.metrics + own, records.content_type, records.targets)

    def parts(self) -> list[EnginePart]:
        starting = [
            EngineView(
                self.name,
                str(each.number),
                "starting",
                role=keeper.plan.options.role,
                number=-1 - each.number,
            )
            for keeper in self.keepers.values()
            for each in keeper.starts
        ]
        return super().parts() + [EnginePart(view, lambda since: []) for view in starting]

    async def drain(self, timeout: float) -> None:
        self._closing.set()
        await super().drain(timeout)

    def close(self) -> None:
        self._closing.set()
        self._thread.join()
        for each in self.keepers.values():
            each.end_starts()
        super().close()

    def _taken_numbers(self) -> list[int]:
        return [number for keeper in self.keepers.values() for number in keeper.numbers]

    def _supervise(self) -> None:
        while not self._closing.wait(TICK_SECONDS):
            for keeper in self.keepers.values():
                try:
                    do_on_loop(self.loop, partial(self._tick, keeper), self._closing.is_set)
                except Exception:
                    logger.exception("pool %s cannot be looked after just now", keeper.name)

    def _tick(self, keeper: PoolKeeper) -> None:
        if not self._closing.is_set():  # meanwhile
            keeper.tick()
