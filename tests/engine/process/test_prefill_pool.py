"""Protects: a request that is handed on is written by one engine at a time, to its end."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import msgspec
import pytest

from tests.engine.process import scripted_process
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
from tests.fakes import FakeExecutor
from twostroke.core.errors import EngineDeadError
from twostroke.core.generation_request import ResolvedRequest
from twostroke.core.output import RequestOutput
from twostroke.core.prefix_hit import KVOffer
from twostroke.core.request import FinishReason
from twostroke.engine.clients.answer_so_far import AnswerSoFar
from twostroke.engine.clients.stream import AsyncStream
from twostroke.engine.llm_engine import LLMEngine
from twostroke.engine.process.engine_process import EngineProcess
from twostroke.engine.process.handing_on import PrefillPlan, PrefillPool
from twostroke.engine.process.replicas import Replicas
from twostroke.routing.make_router import make_router

LONG = 6  # tokens of the prompt of ``call``


@contextmanager
def running(plan: PrefillPlan) -> Iterator[Replicas]:
    """The first answers, the second computes prompts."""
    pool = PrefillPool({1: "peer0"}, plan)
    replicas = Replicas([started(0), started(1)], make_router("least-loaded"), pool)
    try:
        yield replicas
    finally:
        replicas.close()
    assert not any(alive(pid_of(engine)) for engine in replicas.engines)


def loads(replicas: Replicas) -> list[int]:
    return [engine.num_unfinished for engine in replicas.engines]


@pytest.mark.parametrize("samples", [1, 3])
async def test_a_long_prompt_moves_once_its_first_tokens_are_there(samples: int) -> None:
    request = call("a", max_tokens=60, n=samples)
    expected = await undisturbed(request)
    with running(PrefillPlan(1, LONG)) as replicas:
        stream = replicas.submit(request)
        assert loads(replicas) == [0, 1]
        reading = asyncio.create_task(tokens_of(stream))
        await until(lambda: loads(replicas) == [1, 0])
        assert await reading == expected
        await until(lambda: not replicas.engines[1].has("a"))


async def test_short_prompts_and_those_that_do_not_fit_stay_where_answers_are() -> None:
    for plan in (PrefillPlan(1, LONG + 1), PrefillPlan(1, LONG, memory=LONG - 1)):
        with running(plan) as replicas:
            for engine in replicas.engines:
                engine.info = replace(engine.info, kv_bytes_per_token=1)
            stream = replicas.submit(call("a"))
            assert loads(replicas) == [1, 0]
            await tokens_of(stream)


async def test_while_they_drain_requests_stay_where_they_are() -> None:
    """Nothing would wait for the end of one that goes to an engine which is through."""
    with running(PrefillPlan(1, LONG)) as replicas:
        answering, computing = replicas.engines
        stream = replicas.submit(call("a", max_tokens=60))
        draining = asyncio.create_task(replicas.drain(20))
        await asyncio.sleep(0)
        pid = pid_of(computing)
        os.kill(pid, signal.SIGKILL)
        await until(lambda: pid_of(computing) != pid and computing.takes_requests)
        assert computing.hand_on is None and computing.hand_ahead is None
        assert await tokens_of(stream) == await undisturbed(call("a", max_tokens=60))
        await draining
        assert not answering.has("a")


async def test_what_comes_late_of_a_request_that_is_back_is_not_its_own() -> None:
    """Its id stays taken where it was handed on from, until that engine has ended it."""
    request = call("a", max_tokens=60)
    expected = await undisturbed(request)
    with running(PrefillPlan(1, LONG)) as replicas:
        answering, computing = replicas.engines
        own = computing.hand_on
        assert own is not None

        def stop(request_id: str, stream: AsyncStream) -> bool:
            os.kill(pid_of(computing), signal.SIGSTOP)  # as if it were in a long step
            computing.hand_on = None
            return own(request_id, stream)

        computing.hand_on = stop
        reading = asyncio.create_task(tokens_of(replicas.submit(request)))
        await until(lambda: loads(replicas) == [1, 0])
        os.kill(pid_of(answering), signal.SIGKILL)
        await until(lambda: answering.status.error is not None)
        assert computing.has("a")
        os.kill(pid_of(computing), signal.SIGCONT)
        async with asyncio.timeout(30):
            assert await reading == expected


async def test_a_request_that_is_not_taken_stays_and_counts_for_no_move() -> None:
    request = call("a", max_tokens=60)
    expected = await undisturbed(request)
    with running(PrefillPlan(1, LONG)) as replicas:
        answering, computing = replicas.engines
        adopt, refused = answering.adopt, list[str]()

        def refuse_some(request_id: str, stream: AsyncStream) -> None:
            if len(refused) < 3:
                refused.append(request_id)
                raise EngineDeadError("it has just ended")
            adopt(request_id, stream)

        answering.adopt = refuse_some  # type: ignore[method-assign]
        assert await tokens_of(replicas.submit(request)) == expected
        assert refused == ["a"] * 3
        assert replicas._apart.moves.num_moves == 1
        await until(lambda: not computing.has("a"))


def test_a_prompt_whose_first_sample_ends_without_a_token_is_not_measured() -> None:
    engine = LLMEngine(FakeExecutor())
    message = engine.prepare(call("a", n=2))
    now = message.arrival_time + 3.0
    ended = RequestOutput("a", 0, [], LONG, 0, finish_reason=FinishReason.STOP)
    so_far = AnswerSoFar(message, lambda: now)
    so_far.note(ended)
    so_far.note(RequestOutput("a", 1, [5], LONG, 0))
    assert so_far.has_begun and so_far.prompt_time == (0, 0.0)
    so_far = AnswerSoFar(message, lambda: now)
    so_far.note(msgspec.structs.replace(ended, token_ids=[7]))
    assert so_far.prompt_time == (LONG, 3.0)
    engine.close()


async def test_a_prompt_of_several_steps_is_awaited_where_its_answer_will_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By one engine, which is told of it as it goes on, and forgets it if it does not come."""
    config = replace(CONFIG, scheduler=replace(CONFIG.scheduler, max_prefill_chunk=2))
    monkeypatch.setattr(scripted_process, "CONFIG", config)
    pool = PrefillPool({2: "peer0"}, PrefillPlan(1, LONG))
    replicas = Replicas([started(n) for n in range(3)], make_router("least-loaded"), pool)
    offers = list[tuple[int, str, int, bool]]()
    given_up = list[tuple[int, str]]()
    for number, engine in enumerate(replicas.engines):
        note(engine, number, offers, given_up)
    try:
        request = call("a", max_tokens=60)
        expected = await undisturbed(request)
        assert await tokens_of(replicas.submit(request)) == expected
        (first, *others) = {number for number, *_ in offers}
        assert not others and first != 2
        assert [each[1:] for each in offers] == [("a", 2, True), ("a", 4, False)]
        assert not given_up and replicas._apart.num_ahead == 1

        offers.clear()
        stream = replicas.submit(call("b", first=9, max_tokens=60))
        await until(lambda: bool(offers))
        stream.abort()
        await until(lambda: not replicas._apart._writers)
        await until(lambda: not any(engine.has("b") for engine in replicas.engines))
        if not stream.usage.output_tokens:  # it had not moved
            assert given_up == [(offers[0][0], "b")]
    finally:
        replicas.close()


def note(
    engine: EngineProcess,
    number: int,
    offers: list[tuple[int, str, int, bool]],
    given_up: list[tuple[int, str]],
) -> None:
    """Write down what an engine is told of prompts that may come to it."""
    expect, expect_no_more = engine.expect, engine.expect_no_more

    def noted(request_id: str, offer: KVOffer, request: ResolvedRequest | None) -> None:
        offers.append((number, request_id, offer.num_tokens, request is not None))
        expect(request_id, offer, request)

    def noted_end(request_id: str) -> None:
        given_up.append((number, request_id))
        expect_no_more(request_id)

    engine.expect, engine.expect_no_more = noted, noted_end  # type: ignore[method-assign]


async def test_an_answer_that_begins_while_the_server_ends_is_written_to_its_end() -> None:
    request = call("a", max_tokens=60)
    expected = await undisturbed(request)
    with running(PrefillPlan(1, LONG)) as replicas:
        reading = asyncio.create_task(tokens_of(replicas.submit(request)))
        await asyncio.sleep(0)
        await replicas.drain(20)
        assert await reading == expected
