"""Protects: orders to several engines of which some are gone are carried out, and told of."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.engine.process.scripted_process import pid_of, started, until
from twostroke.core.errors import EngineDeadError, InvalidRequestError
from twostroke.engine.adapters.orders import (
    AdapterOrder,
    AdapterReport,
    KnownAdapter,
    LoadAdapter,
    UnloadAdapter,
)
from twostroke.engine.cache_orders import ClearCache, ShowCache
from twostroke.engine.messages import ManageAdapters
from twostroke.engine.process import process_link
from twostroke.engine.process.all_engines import OwedClears
from twostroke.engine.process.engine_process import EngineProcess
from twostroke.engine.process.replicas import Replicas
from twostroke.routing.make_router import make_router

SQL = KnownAdapter("sql", "/adapters/sql", "digest", 8, 1000, 0)


@contextmanager
def running(pauses: tuple[float, ...], monkeypatch: pytest.MonkeyPatch) -> Iterator[Replicas]:
    monkeypatch.setattr(process_link, "PAUSES", pauses)
    replicas = Replicas([started(rank) for rank in range(2)], make_router("least-loaded"))
    try:
        yield replicas
    finally:
        replicas.close()


async def kill(engine: EngineProcess) -> None:
    os.kill(pid_of(engine), signal.SIGKILL)
    await until(lambda: not engine.takes_requests)


def loading(engine: EngineProcess, monkeypatch: pytest.MonkeyPatch) -> list[AdapterOrder]:
    """Have an engine without adapters take orders on them; returns those that came."""
    orders: list[AdapterOrder] = []

    async def manage(order: AdapterOrder) -> AdapterReport:
        if not engine.takes_requests:
            raise EngineDeadError("gone")
        orders.append(order)
        engine.mirror.will_have(SQL)
        return AdapterReport(SQL)

    monkeypatch.setattr(engine, "manage_adapters", manage)
    return orders


async def test_a_cache_is_cleared_where_an_engine_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with running((30.0,), monkeypatch) as replicas:
        report = await replicas.manage_cache(ClearCache())
        assert report.engines == {"0": "done", "1": "done"}
        await kill(replicas.engines[0])
        report = await replicas.manage_cache(ClearCache())
        assert report.engines["1"] == "done" and "SIGKILL" in report.engines["0"]
        assert (await replicas.manage_cache(ShowCache())).block_size
        await kill(replicas.engines[1])
        with pytest.raises(EngineDeadError):
            await replicas.manage_cache(ClearCache())


async def test_an_engine_that_was_gone_clears_its_cache_when_it_is_back() -> None:
    """A worker keeps what it had cached while its router is gone."""
    owed = OwedClears()
    with_engine = started()
    try:
        owed.note(ShowCache(), [3])
        owed.carry_out(3, with_engine)
        assert not owed._running
        owed.note(ClearCache(), [3])
        owed.carry_out(3, with_engine)
        (task,) = owed._running
        await task
        assert not owed._owed
        owed.note(ClearCache(), [3])
        owed.forget(3)
        owed.carry_out(3, with_engine)
        assert not owed._running
    finally:
        with_engine.close()


async def test_an_engine_that_was_gone_gets_the_adapters_when_it_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with running((0.5,), monkeypatch) as replicas:
        first, second = replicas.engines
        orders = loading(second, monkeypatch)
        loading(first, monkeypatch)
        await kill(first)
        report = await replicas.manage_adapters(LoadAdapter("sql", SQL.path))
        assert report.engines == {"1": "loaded", "0": "loaded once it is back: gone"}
        assert orders == [LoadAdapter("sql", SQL.path)] and first.adapters == {"sql": SQL}
        sent: list[ManageAdapters] = []
        monkeypatch.setattr(first.mirror, "_send", sent.append)
        await until(lambda: first.takes_requests)
        assert [message.order for message in sent] == [LoadAdapter("sql", SQL.path)]
        report = await replicas.manage_adapters(UnloadAdapter("sql"))
        assert set(report.engines.values()) == {"unloaded"} and not first.adapters


async def test_an_engine_that_is_back_before_the_others_have_answered_gets_the_adapter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """To load one takes seconds, and an engine may be there again in less."""
    with running((0.0,), monkeypatch) as replicas:
        first, second = replicas.engines
        sent: list[ManageAdapters] = []

        async def end(order: AdapterOrder) -> AdapterReport:
            await kill(first)
            raise EngineDeadError("gone")

        async def load_late(order: AdapterOrder) -> AdapterReport:
            await until(lambda: first.status.error is not None)
            await until(lambda: first.takes_requests)
            return AdapterReport(SQL)

        monkeypatch.setattr(first, "manage_adapters", end)
        monkeypatch.setattr(second, "manage_adapters", load_late)
        monkeypatch.setattr(first.mirror, "_send", sent.append)
        await replicas.manage_adapters(LoadAdapter("sql", SQL.path))
        assert [message.order for message in sent] == [LoadAdapter("sql", SQL.path)]
        assert first.adapters == {"sql": SQL}


async def test_where_one_refuses_an_adapter_none_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with running((30.0,), monkeypatch) as replicas:
        first, second = replicas.engines
        orders = loading(first, monkeypatch)

        async def refuse(order: AdapterOrder) -> AdapterReport:
            raise InvalidRequestError("there is no folder")

        monkeypatch.setattr(second, "manage_adapters", refuse)
        with pytest.raises(InvalidRequestError, match="engine 1: there is no folder; no engine"):
            await replicas.manage_adapters(LoadAdapter("sql", SQL.path))
        assert orders == [LoadAdapter("sql", SQL.path), UnloadAdapter("sql")]
        assert not first.adapters
