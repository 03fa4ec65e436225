"""Protects: an engine in a process of its own may end at any time, and no request is lost by it.

Real processes, whose engines have no model.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from tests.engine.process.scripted_engine import ENDS, FAILS, HANGS, VERSION
from tests.engine.process.scripted_process import (
    CONFIG,
    alive,
    call,
    pid_of,
    started,
    tokens_of,
    undisturbed,
    until,
)
from tests.fakes import failed_with
from twostroke.core.config import EngineConfig
from twostroke.core.errors import (
    ConfigError,
    EngineDeadError,
    InsufficientMemoryError,
    InvalidRequestError,
    ShuttingDownError,
)
from twostroke.core.request import FinishReason
from twostroke.engine.clients.answer_so_far import MAX_LOST
from twostroke.engine.process import idleness, process_link
from twostroke.engine.process.engine_process import EngineProcess
from twostroke.engine.process.engine_source import StartedEngine, start_again
from twostroke.engine.process.frames import encode_frame
from twostroke.engine.process.handshake import StartEngine
from twostroke.engine.process.process_link import start_engine
from twostroke.observability.kv_events import AllBlocksCleared


@contextmanager
def running(**options: Any) -> Iterator[EngineProcess]:
    engine = started(**options)
    try:
        yield engine
    finally:
        engine.close()
    assert not alive(pid_of(engine))


def has_events(engine: EngineProcess, number: int) -> bool:
    return len(engine.events()) >= number


async def test_whichever_engine_ends_the_streams_go_on_with_the_tokens_they_would_have_had() -> (
    None
):
    requests = [call("a", temperature=1.0), call("b", n=3, temperature=1.0), call("c", first=8)]
    expected = [await undisturbed(request) for request in requests]
    with running() as engine:
        streams = [engine.submit(request) for request in requests]
        reading = [asyncio.create_task(tokens_of(stream)) for stream in streams]
        for num_steps in (4, 12, 25):
            await until(partial(has_events, engine, num_steps))
            os.kill(pid_of(engine), signal.SIGKILL)
            await until(lambda: engine.unhealthy_reason() is not None)
            assert "SIGKILL" in (engine.unhealthy_reason() or "")
            await until(lambda: engine.unhealthy_reason() is None)
        assert [await task for task in reading] == expected
        assert [stream.usage.output_tokens for stream in streams] == [40, 120, 40]
        steps = [event.step for event in engine.events()]
        assert steps == list(range(len(steps))), "numbers go on"
        batches = engine.kv_events()
        assert [batch.seq for batch in batches] == list(range(len(batches)))
        cleared = [e for b in batches for e in b.events if isinstance(e, AllBlocksCleared)]
        assert len(cleared) == 3
        assert b"vllm:generation_tokens_total" in (await engine.records()).metrics


async def test_while_no_engine_runs_new_requests_are_refused_and_aborts_are_kept() -> None:
    with running() as engine:
        stream = engine.submit(call("a"))
        kept = engine.submit(call("b"))
        await until(lambda: stream.usage.output_tokens > 2)
        os.kill(pid_of(engine), signal.SIGKILL)
        await until(lambda: engine.status.error is not None)
        with pytest.raises(EngineDeadError, match="SIGKILL"):
            engine.submit(call("c"))
        ended = asyncio.Event()
        stream.when_ended(lambda usage: ended.set())
        stream.abort()
        assert (await tokens_of(kept)) == await undisturbed(call("b"))
        async with asyncio.timeout(10):
            await ended.wait()
        assert engine.status.error is None
        assert len(await tokens_of(engine.submit(call("a")))) == 1, "its id is free again"


async def test_a_request_that_ends_its_engine_again_and_again_is_given_up_alone() -> None:
    """What waits beside it, or has a token, goes on; each is then tried apart."""
    others = [call(f"other-{number}", first=number) for number in range(1, 7)]
    expected = [await undisturbed(request) for request in others]
    with running() as engine:
        streams = [engine.submit(request) for request in others[:3]]
        bad = engine.submit(call("bad", first=ENDS))
        streams += [engine.submit(request) for request in others[3:]]
        reading = [asyncio.create_task(tokens_of(stream)) for stream in streams]
        async with asyncio.timeout(60):
            outputs = [output async for output in bad]
            assert [await task for task in reading] == expected
        assert outputs[-1].finish_reason is FinishReason.ERROR
        assert failed_with(outputs[-1].error, EngineDeadError)
        assert f"{MAX_LOST} engines" in str(outputs[-1].error)


async def test_a_bug_of_the_engine_ends_no_request() -> None:
    with running() as engine:
        other = engine.submit(call("other"))
        await until(lambda: other.usage.output_tokens > 3)
        stream = engine.submit(call("fails", first=FAILS))
        async with asyncio.timeout(30):
            assert await tokens_of(stream) == await undisturbed(call("fails", first=FAILS))
            assert await tokens_of(other) == await undisturbed(call("other"))


async def test_what_no_message_holds_is_refused_and_nothing_stays_behind() -> None:
    with running() as engine:
        for request in (call("a", top_k=2**40), replace(call("a"), priority=2**63)):
            with contextlib.suppress(InvalidRequestError):
                await tokens_of(engine.submit(request))
        with pytest.raises(InvalidRequestError, match="top_k"):
            call("a", top_k=2**63)
        assert not engine._streams
        assert await tokens_of(engine.submit(call("a"))) == await undisturbed(call("a"))


async def test_seeds_go_on_after_an_engine() -> None:
    """With ``--seed`` a restart must not repeat the draws of the first requests."""
    with running(seed=1) as engine:
        drawn = []
        for name in ("a", "b"):
            stream = engine.submit(call(name, seed=None, temperature=1.0))
            drawn.append((await tokens_of(stream))[0])
            os.kill(pid_of(engine), signal.SIGKILL)
            await until(lambda: engine.unhealthy_reason() is not None)
            await until(lambda: engine.unhealthy_reason() is None)
        assert drawn[0] != drawn[1]


async def test_a_file_in_the_current_folder_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "msgspec.py").write_text("raise SystemExit(3)")
    monkeypatch.chdir(tmp_path)
    with running() as engine:
        assert await tokens_of(engine.submit(call("a"))) == await undisturbed(call("a"))


async def test_an_engine_that_hangs_is_ended_and_its_requests_go_on() -> None:
    with running(stall_seconds=0.5) as engine:
        first = pid_of(engine)
        other = engine.submit(call("other", max_tokens=60))
        await until(lambda: other.usage.output_tokens > 3)
        stream = engine.submit(call("hangs", first=HANGS))
        async with asyncio.timeout(30):
            assert await tokens_of(stream) == await undisturbed(call("hangs", first=HANGS))
            assert len((await tokens_of(other))[0]) == 60
        assert pid_of(engine) != first


async def test_an_engine_that_is_stopped_is_ended_too() -> None:
    """It does not answer a message, though no step runs."""
    with running(stall_seconds=0.5) as engine:
        first = pid_of(engine)
        os.kill(first, signal.SIGSTOP)
        async with asyncio.timeout(30):
            assert await tokens_of(engine.submit(call("a"))) == await undisturbed(call("a"))
        assert pid_of(engine) != first


async def test_an_engine_without_requests_ends_and_the_next_request_starts_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process_link, "PAUSES", (0.0, 60.0, 60.0, 60.0))  # no pause is waited for
    with running(idle_seconds=0.3) as engine:
        first = pid_of(engine)
        stream = engine.submit(call("a"))
        assert await tokens_of(stream) == await undisturbed(call("a"))
        await until(lambda: not alive(first))
        assert engine.unhealthy_reason() is None and engine.status.error is None
        with pytest.raises(EngineDeadError, match="no request came"):
            await engine.snapshot()
        assert (await engine.records()).metrics
        aborted, stream = engine.submit(call("b")), engine.submit(call("c"))
        aborted.abort()
        async with asyncio.timeout(20):
            assert await tokens_of(stream) == await undisturbed(call("c"))
        assert pid_of(engine) != first
        assert aborted.usage.output_tokens == 0


async def test_a_model_that_cannot_wake_is_tried_again_by_the_next_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with running(idle_seconds=0.2) as engine:
        first = pid_of(engine)
        await until(lambda: not alive(first))
        with monkeypatch.context() as broken:
            broken.setattr(process_link, "MODULE", "tests.engine.process.no_such_module")
            outputs = [output async for output in engine.submit(call("a"))]
            assert "cannot be started again at the moment" in str(outputs[-1].error)
            assert "does not wake: the engine's process ended" in (engine.unhealthy_reason() or "")
            # A balancer that asks for this would else never send the request that tries again.
            monkeypatch.setattr(idleness, "TROUBLE_SECONDS", 0.0)
            assert engine.unhealthy_reason() is None
        async with asyncio.timeout(20):
            assert await tokens_of(engine.submit(call("b"))) == await undisturbed(call("b"))
        monkeypatch.setattr(idleness, "TROUBLE_SECONDS", 30.0)
        assert engine.unhealthy_reason() is None


async def test_what_cannot_be_started_again_is_given_up_with_a_named_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with running() as engine:
        stream = engine.submit(call("a"))
        monkeypatch.setattr(process_link, "MODULE", "tests.engine.process.no_such_module")
        os.kill(pid_of(engine), signal.SIGKILL)
        outputs = [output async for output in stream]
        assert failed_with(outputs[-1].error, EngineDeadError)
        assert "cannot be started again" in (engine.unhealthy_reason() or "")
        with pytest.raises(EngineDeadError, match="cannot be started again"):
            engine.submit(call("b"))
        assert b"vllm:num_requests" in (await engine.records()).metrics


async def test_a_front_end_that_closes_ends_what_runs() -> None:
    with running() as engine:
        stream = engine.submit(call("a", max_tokens=100))
        await until(lambda: stream.usage.output_tokens > 2)
        await engine.drain(0.05)
        outputs = [output async for output in stream]
        assert failed_with(outputs[-1].error, ShuttingDownError)


def test_an_engine_whose_front_end_is_gone_ends() -> None:
    started = start_engine(StartEngine(VERSION, CONFIG))
    started.link._socket.close()
    assert started.link.wait(10)


def test_a_start_that_is_refused_says_why() -> None:
    with pytest.raises(InsufficientMemoryError, match="there is no room"):
        start_engine(StartEngine(VERSION, CONFIG, served_model_name="refused"))
    with pytest.raises(EngineDeadError, match="ended with status 7 before it was ready"):
        start_engine(StartEngine(VERSION, CONFIG, served_model_name="gone"))
    with pytest.raises(ConfigError, match="the front end is twostroke other"):
        start_engine(StartEngine("other", CONFIG))


def test_a_start_that_something_has_stopped_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_link, "PATIENCE", 1.0)
    with pytest.raises(EngineDeadError, match="did nothing for 1 s while it started"):
        start_engine(StartEngine(VERSION, CONFIG, served_model_name="stopped"))


def test_configurations_cross_unchanged() -> None:
    """Among them those whose defaults depend on the device."""
    for options in (
        {},
        {"max_num_seqs": 3, "target": ("ttft=p95:10",)},
        {"kv_host_memory": 2**30},
    ):
        start = StartEngine("1", EngineConfig.from_flat(options))
        assert msgspec.msgpack.decode(encode_frame(start)[4:], type=StartEngine) == start


class NoEngine(NamedTuple):
    """A source without an end of its own, whose engine never starts."""

    starts: list[int]
    config: EngineConfig = CONFIG
    pauses: Sequence[float] = (0.0,)
    gives_up: bool = False
    again: str = ""

    def start(self) -> StartedEngine:
        self.starts.append(1)
        raise EngineDeadError("there is none")


def test_a_bound_on_starts_holds_for_a_source_that_does_not_give_up() -> None:
    source = NoEngine([])
    assert start_again(source, 0, threading.Event(), lambda error: None, 2)[0] is None
    assert len(source.starts) == 2
