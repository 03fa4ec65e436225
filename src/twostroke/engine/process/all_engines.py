"""What several engines of one model are and say together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, TypeVar

from twostroke.core.errors import EngineDeadError, PredictedLateError, TwostrokeError
from twostroke.engine.adapters.orders import (
    AdapterOrder,
    AdapterReport,
    KnownAdapter,
    LoadAdapter,
    UnloadAdapter,
)
from twostroke.engine.cache_orders import CacheOrder, CacheReport, ClearCache
from twostroke.engine.messages import EngineStatus
from twostroke.engine.process.engine_process import EngineProcess
from twostroke.observability.events import SchedulerStats

T = TypeVar("T")
logger = logging.getLogger(__name__)
_COUNTS = [each.name for each in fields(SchedulerStats) if each.name != "tiers"]


def joined_status(statuses: Sequence[EngineStatus]) -> EngineStatus:
    """The load of all; an error only if none takes requests."""
    counts: dict[str, Any] = {
        name: sum(getattr(status.stats, name) for status in statuses) for name in _COUNTS
    }
    stats = SchedulerStats(**counts, tiers=statuses[0].stats.tiers)
    errors = [status.error for status in statuses]
    busy = [each.busy_since for each in statuses if each.busy_since is not None]
    return EngineStatus(stats, errors[0] if all(errors) else None, min(busy, default=None))


def check_in_time_somewhere(
    engines: Iterable[EngineProcess], tenant: str, request_id: str, waited: float
) -> None:
    """Raise PredictedLateError if not even the smallest call would be in time in one of them."""
    late: PredictedLateError | None = None
    for engine in engines:
        try:
            engine.check_in_time(tenant, request_id, waited)
        except PredictedLateError as error:
            late = error
        else:
            return
    if late is not None:
        raise late


async def ask_all(questions: Sequence[Any]) -> list[Any]:
    """All answers; the first error, if there is one, once all have answered."""
    answers = await asyncio.gather(*questions, return_exceptions=True)
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
    return list(answers)


async def ask_those_there(
    questions: Mapping[int, Awaitable[T]],
) -> tuple[dict[int, T], dict[int, EngineDeadError], dict[int, Exception]]:
    """The answers by engine, which engines are not there, and which refuse, and why.

    Raises:
        EngineDeadError: None is there.
    """
    answers = await asyncio.gather(*questions.values(), return_exceptions=True)
    answered: dict[int, T] = {}
    gone: dict[int, EngineDeadError] = {}
    refused: dict[int, Exception] = {}
    for index, answer in zip(questions, answers, strict=True):
        if isinstance(answer, EngineDeadError):
            gone[index] = answer
        elif isinstance(answer, Exception):
            refused[index] = answer
        elif isinstance(answer, BaseException):
            raise answer
        else:
            answered[index] = answer
    if len(gone) == len(questions):
        raise next(iter(gone.values()))
    return answered, gone, refused


async def manage_caches(
    engines: Mapping[int, EngineProcess], order: CacheOrder
) -> tuple[CacheReport, list[int]]:
    """What those that are there report together, and which are not there.

    Raises:
        TwostrokeError: One of them refuses, or none is there.
    """
    asked = {index: engine.manage_cache(order) for index, engine in engines.items()}
    answered, gone, refused = await ask_those_there(asked)
    if refused:
        raise next(iter(refused.values()))
    report: CacheReport = next(iter(answered.values()))
    report.cleared_blocks = sum(each.cleared_blocks for each in answered.values())
    outcomes = dict.fromkeys(answered, "done") | {i: error.message for i, error in gone.items()}
    report.engines = {engines[i].labels["engine"]: text for i, text in outcomes.items()}
    return report, list(gone)


class OwedClears:
    """Engines whose caches are to be cleared once they are back: a worker keeps its own meanwhile.

    All methods run on the event loop's thread.
    """

    def __init__(self) -> None:
        self._owed: set[int] = set()
        self._running: set[asyncio.Task[None]] = set()

    def note(self, order: CacheOrder, gone: Iterable[int]) -> None:
        """These could not be given an order."""
        if isinstance(order, ClearCache):
            self._owed.update(gone)

    def forget(self, index: int) -> None:
        """An engine is gone for good."""
        self._owed.discard(index)

    def carry_out(self, index: int, engine: EngineProcess) -> None:
        """An engine is there, or back."""
        if index in self._owed:
            self._owed.discard(index)
            task = asyncio.ensure_future(self._clear(index, engine))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def _clear(self, index: int, engine: EngineProcess) -> None:
        try:
            await engine.manage_cache(ClearCache())
        except EngineDeadError:  # gone again
            self._owed.add(index)
        except TwostrokeError as error:
            logger.error(
                "the cache of engine %s is not cleared: %s", engine.labels["engine"], error
            )


async def manage_all(engines: Mapping[int, EngineProcess], order: AdapterOrder) -> AdapterReport:
    """Load an adapter in all engines that are there, or unload it, or change nothing.

    Those that are not there do it once they are back.

    Raises:
        TwostrokeError: One of them refuses: the others have undone it.
    """
    asked = {index: engine.manage_adapters(order) for index, engine in engines.items()}
    answered, gone, refused = await ask_those_there(asked)
    names = {index: engine.labels["engine"] for index, engine in engines.items()}
    if refused:
        await asyncio.gather(
            *(engines[i].manage_adapters(_undoing(order, answered[i].adapter)) for i in answered),
            return_exceptions=True,
        )
        index, error = next(iter(refused.items()))
        if isinstance(error, TwostrokeError) and len(engines) > 1:
            error.message = f"engine {names[index]}: {error.message}; no engine has done it"
            error.args = (error.message,)
        raise error
    adapter = next(iter(answered.values())).adapter
    for index in gone:
        engines[index].mirror.make_up_for(adapter)
    word = "loaded" if isinstance(order, LoadAdapter) else "unloaded"
    outcomes = {names[index]: word for index in answered}
    outcomes |= {names[i]: f"{word} once it is back: {error.message}" for i, error in gone.items()}
    return AdapterReport(adapter, outcomes)


def _undoing(order: AdapterOrder, adapter: KnownAdapter) -> AdapterOrder:
    if isinstance(order, LoadAdapter):
        return UnloadAdapter(adapter.name)
    return LoadAdapter(adapter.name, adapter.path)
