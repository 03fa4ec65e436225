"""Protects: a page may ask for small simulated runs, and for nothing larger or other."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from tests.gateway.test_usage import ALICE, bearer, gateway_with_keys
from tests.server.running import running_server
from tests.server.scripted import ScriptedEngine
from twostroke.core.errors import InvalidRequestError, QueueFullError
from twostroke.inspector.simulations.process import SimulationError, SimulationProcess
from twostroke.inspector.simulations.routes import (
    MAX_BODY,
    MAX_KEPT_BYTES,
    MAX_OF_ONE_KEY,
    MAX_WAITING,
    OneAtATime,
)
from twostroke.questions.small_run import (
    MAX_OUTPUT_TOKENS,
    AskedRequest,
    AskedRun,
    SimulatedRun,
    read_question,
)

PATH = "/v1/inspect/simulate"
SHORT = {"requests": [{"prompt": 64, "output": 8}, {"arrival": 0.01, "prompt": 64, "output": 4}]}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with running_server(ScriptedEngine()) as url:
        yield url


def test_a_run_comes_back_as_requests_steps_and_shares(url: str) -> None:
    answer = httpx.post(url + PATH, json=SHORT, timeout=60)
    assert answer.status_code == 200, answer.text
    run = msgspec.json.decode(answer.content, type=SimulatedRun)
    assert [request.number for request in run.requests] == [0, 1]
    assert sum(run.steps.new) == sum(run.shares.new) == 12
    assert sum(run.steps.prompt) == 128
    assert run.seconds == max(run.steps.end)
    assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "requests"),
        ({"requests": []}, "requests"),
        ({"requests": [{}] * 65}, "requests"),
        ({"requests": [{"prompt": 0}]}, "requests[0].prompt"),
        ({"requests": [{}, {"prompt": 2**20}]}, "requests[1].prompt"),
        ({"requests": [{"prompt": 8, "prefix": 9}]}, "requests[0].prefix"),
        ({"requests": [{"size": 1}]}, "requests[0].size"),
        ({"requests": [{"arrival": "soon"}]}, "requests[0].arrival"),
        ({"requests": [{"output": 1000}] * 64}, "requests"),
        ({"requests": [{}], "seed": 3}, "seed"),
        ({"requests": [{}], "model": "/etc/passwd"}, "model"),
        ({"requests": [{}], "gpu": "../sheet.toml"}, "gpu"),
        ({"requests": [{}], "max_num_batched_tokens": 1}, "max_num_batched_tokens"),
        ({"requests": [{}], "acceptance": float("1e9")}, "acceptance"),
    ],
)
def test_what_is_wrong_is_refused_by_its_name(url: str, body: Any, field: str) -> None:
    answer = httpx.post(url + PATH, json=body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == field
    assert answer.json()["error"]["message"].startswith(f"{field}: ")


def test_what_is_no_json_or_too_large_is_refused(url: str) -> None:
    for content in (
        b"",
        b"{",
        b"[1]",
        b"\xff\xfe",
        b'{"model": "\xff"}',
        b"[" * 5000,
        b" " * (MAX_BODY + 1),
    ):
        answer = httpx.post(url + PATH, content=content)
        assert answer.status_code == 400, answer.text


def test_a_model_that_does_not_fit_is_the_callers_error(url: str) -> None:
    body = {"requests": [{}], "model": "llama-3.1-70b", "gpu": "l4"}
    answer = httpx.post(url + PATH, json=body, timeout=60)
    assert answer.status_code == 400
    assert "does not fit" in answer.json()["error"]["message"]


def test_it_needs_a_key_where_there_are_keys_and_goes_with_the_inspector(tmp_path: Path) -> None:
    with running_server(ScriptedEngine(), gateway=gateway_with_keys(tmp_path)) as url:
        assert httpx.post(url + PATH, json=SHORT).status_code == 401
        answer = httpx.post(url + PATH, json=SHORT, headers=bearer(ALICE), timeout=60)
        assert answer.status_code == 200
    with running_server(ScriptedEngine(), inspector=False) as url:
        assert httpx.post(url + PATH, json=SHORT).status_code == 404


async def test_a_run_that_takes_too_long_is_stopped() -> None:
    outputs = [AskedRequest(output=1024) for _ in range(MAX_OUTPUT_TOKENS // 1024)]
    process = SimulationProcess(max_seconds=0.01)
    with pytest.raises(SimulationError, match="longer than"):
        await process.run(AskedRun(requests=outputs, max_num_seqs=1))


async def test_a_process_answers_again_and_is_replaced_when_it_has_ended() -> None:
    """Also after a question that has no answer."""
    process = SimulationProcess(max_seconds=120)
    asked = AskedRun(requests=[AskedRequest(output=2)])
    too_large = AskedRun(requests=[AskedRequest()], model="llama-3.1-70b", gpu="l4")
    first = await process.run(asked)
    with pytest.raises(InvalidRequestError, match="does not fit"):
        await process.run(too_large)
    assert await process.run(asked) == first
    assert process._process is not None
    process._process.kill()
    process._process.wait()
    assert await process.run(asked) == first
    process.close()


def question(number: int) -> AskedRun:
    return AskedRun(requests=[AskedRequest()], max_num_seqs=number)


async def test_one_question_is_simulated_at_a_time_and_equal_ones_once() -> None:
    asked: list[AskedRun] = []
    may_end = asyncio.Event()

    async def simulate(question: AskedRun) -> bytes:
        asked.append(question)
        await may_end.wait()
        return msgspec.json.encode(question.max_num_seqs)

    simulations = OneAtATime(simulate)
    tasks = [
        asyncio.ensure_future(simulations.answer(question(1 + number // 2)))
        for number in range(MAX_WAITING)
    ]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(asked) == 1
    with pytest.raises(QueueFullError):
        await simulations.answer(question(99))
    may_end.set()
    answers = [json.loads(answer) for answer in await asyncio.gather(*tasks)]
    assert answers == [1 + number // 2 for number in range(MAX_WAITING)]
    assert len(asked) == MAX_WAITING // 2
    await simulations.answer(question(1))
    assert len(asked) == MAX_WAITING // 2


async def test_a_failed_run_is_not_kept_and_the_next_one_runs() -> None:
    fails = [True, False]

    async def simulate(question: AskedRun) -> bytes:
        if fails.pop(0):
            raise SimulationError("it failed")
        return b"1"

    simulations = OneAtATime(simulate)
    asked = read_question(b'{"requests": [{}]}')
    with pytest.raises(SimulationError):
        await simulations.answer(asked)
    assert await simulations.answer(asked) == b"1"


async def test_one_key_leaves_room_for_others() -> None:
    may_end = asyncio.Event()

    async def simulate(question: AskedRun) -> bytes:
        await may_end.wait()
        return b"1"

    simulations = OneAtATime(simulate)
    tasks = [
        asyncio.ensure_future(simulations.answer(question(1 + number), "alice"))
        for number in range(MAX_OF_ONE_KEY)
    ]
    await asyncio.sleep(0)
    with pytest.raises(QueueFullError, match="of this key"):
        await simulations.answer(question(98), "alice")
    others = [
        asyncio.ensure_future(simulations.answer(question(97), "bob")),
        asyncio.ensure_future(simulations.answer(question(96))),
    ]
    await asyncio.sleep(0)
    assert not any(other.done() for other in others)
    may_end.set()
    assert await asyncio.gather(*tasks, *others) == [b"1"] * (MAX_OF_ONE_KEY + 2)
    assert await simulations.answer(question(98), "alice") == b"1"


async def test_large_answers_are_forgotten_before_they_fill_the_memory() -> None:
    asked: list[AskedRun] = []

    async def simulate(question: AskedRun) -> bytes:
        asked.append(question)
        return b"x" * (MAX_KEPT_BYTES // 2)

    simulations = OneAtATime(simulate)
    for number in (1, 2, 3):
        await simulations.answer(question(number))
    await simulations.answer(question(3))
    assert len(asked) == 3
    await simulations.answer(question(1))
    assert len(asked) == 4


def test_a_question_may_not_sum_to_more_than_its_parts_may() -> None:
    most = {"requests": [{"prompt": 2**16}] * 5}
    with pytest.raises(InvalidRequestError, match="prompt tokens in all"):
        read_question(json.dumps(most).encode())
