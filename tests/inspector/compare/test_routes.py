"""Protects: the comparison over HTTP: validated, bounded, for admins, of a live engine too."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvloop

from tests.gateway.test_usage import ADMIN, ALICE, bearer, gateway_with_keys
from tests.inspector.recorded import recording
from tests.inspector.showing import showing
from tests.server.running import running_server
from tests.server.tiny import tiny_engine
from twostroke.core.errors import InvalidRequestError
from twostroke.inspector.compare.collect import collect, make_job
from twostroke.inspector.compare.messages import Question
from twostroke.inspector.compare.process import NobodyWaitsError, run_replay
from twostroke.inspector.compare.routes import MAX_WAITING
from twostroke.inspector.recording import Recording
from twostroke.questions.replay import Replay

ALL = {"begin": 0.0, "end": 100.0}


@contextmanager
def inspecting() -> Iterator[str]:
    with showing("recording") as address:
        yield address.replace("/inspect/", "/v1/inspect/compare")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with inspecting() as url:
        yield url


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def took(answer: Any, finishes: list[float]) -> float:
    return mean([f - r["arrival"] for f, r in zip(finishes, answer["requests"], strict=True)])


def test_the_simulation_of_what_was_served_is_close_to_the_recording(url: str) -> None:
    answer = httpx.post(url, json={**ALL, "against": "static"}, timeout=60).json()
    real = took(answer, [request["finish"] for request in answer["requests"]])
    ours = took(answer, answer["recorded"]["finish"])
    static = took(answer, answer["other"]["finish"])
    assert ours == pytest.approx(real, rel=0.05)
    assert static > 1.5 * ours
    assert answer["fit"]["median_error"] < 0.1
    assert (answer["unfinished"], answer["left_out"]) == (0, 0)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"begin": 1.0}, "end"),
        ({"begin": 2.0, "end": 1.0}, "end"),
        ({"begin": "x", "end": 1.0}, "begin"),
        ({**ALL, "against": "magic"}, "against"),
        ({**ALL, "speed": 9}, "speed"),
        ({**ALL, "against": "chunk"}, "tokens"),
        ({**ALL, "against": "budget", "tokens": 0}, "tokens"),
        ({"begin": -9.0, "end": -8.0}, "begin"),
    ],
)
def test_bad_questions_are_named(url: str, body: dict[str, Any], param: str) -> None:
    answer = httpx.post(url, json=body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param


@pytest.mark.parametrize("body", [b"", b"[]", b"{" * 100, b'{"begin": 1e999, "end": 2}'])
def test_bodies_that_are_no_question_are_refused(url: str, body: bytes) -> None:
    assert httpx.post(url, content=body).status_code == 400
    assert httpx.post(url, content=b" " * 5000).status_code == 400


def test_one_runs_at_a_time_and_few_wait(url: str) -> None:
    async def ask(number: int) -> list[int]:
        async with httpx.AsyncClient(timeout=60) as client:
            asked = [client.post(url, json=ALL) for _ in range(number)]
            answers = await asyncio.gather(*asked)
        return sorted(answer.status_code for answer in answers)

    statuses = asyncio.run(ask(8))
    assert statuses.count(200) >= 1 + MAX_WAITING
    assert statuses[-1] == 429


def test_the_process_ends_with_its_time_or_its_caller() -> None:
    source = Recording(recording())
    collected = asyncio.run(collect(source, 0.0, 100.0))
    job, _, _ = make_job(source, Question(0.0, 100.0), collected)
    source.close()

    async def waits() -> bool:
        return False

    async def has_left() -> bool:
        return True

    with pytest.raises(InvalidRequestError, match="takes more than 0 s"):
        asyncio.run(run_replay(job, waits, seconds=0, poll=0.01))
    with pytest.raises(NobodyWaitsError):
        asyncio.run(run_replay(job, has_left, poll=0.01))


def test_a_server_that_ends_beside_a_comparison_closes_its_loop() -> None:
    """uvloop's own child processes made closing the loop fail: device or resource busy."""
    source = Recording(recording())
    collected = asyncio.run(collect(source, 0.0, 100.0))
    job, _, _ = make_job(source, Question(0.0, 100.0), collected)
    source.close()
    begun = list[asyncio.Task[Replay]]()

    async def waits() -> bool:
        return False

    async def begin(seconds: float) -> None:
        begun.append(asyncio.ensure_future(run_replay(job, waits)))
        await asyncio.sleep(seconds)

    for seconds in (0, 0.1):  # before there is a process, and beside one
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(begin(seconds))
        assert begun.pop().cancelled()


def test_a_live_engine_is_replayed_for_an_admin_only(tmp_path: Path) -> None:
    with (
        tiny_engine() as engine,
        running_server(engine, gateway=gateway_with_keys(tmp_path)) as base,
    ):
        for number in range(6):
            body = {"prompt": "the dog " * 9, "max_tokens": 5 + number, "ignore_eos": True}
            answer = httpx.post(base + "/v1/completions", json=body, headers=bearer(ALICE))
            assert answer.status_code == 200
        about = httpx.get(base + "/v1/inspect", headers=bearer(ADMIN)).json()
        question = {"begin": about["first_time"], "end": about["last_time"], "against": "static"}
        route = base + "/v1/inspect/compare"
        assert httpx.post(route, json=question).status_code == 401
        refused = httpx.post(route, json=question, headers=bearer(ALICE))
        assert refused.status_code == 403
        assert "admin key" in refused.json()["error"]["message"]
        found = httpx.post(route, json=question, headers=bearer(ADMIN), timeout=60)
        assert found.status_code == 200, found.text
        answer = found.json()
        assert [request["output"] for request in answer["requests"]] == [5, 6, 7, 8, 9, 10]
        assert answer["requests"][0]["tenant"] == "alice"
        assert None not in answer["other"]["finish"]
