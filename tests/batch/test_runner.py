"""Protects: how many requests run at once, what is retried, what ends a run; scripted servers."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from twostroke.batch import runner as module
from twostroke.batch.lines import Line, parse_line
from twostroke.batch.results import ResultsFile
from twostroke.batch.runner import (
    BatchRunner,
    LineSender,
    Totals,
    check_server,
    parse_retry_after,
    remote_client,
)
from twostroke.core.errors import ConfigError, EngineError

Handler = Callable[[httpx.Request], Any]


def lines(count: int) -> list[Line]:
    fields = {"method": "POST", "url": "/v1/completions", "body": {"prompt": "x"}}
    return [
        parse_line(json.dumps({"custom_id": f"c{i}", **fields}).encode(), i + 1)
        for i in range(count)
    ]


async def run(
    path: Path, handler: Handler, batch: list[Line], *, patience: float = 5, concurrency: int = 3
) -> tuple[list[dict[str, Any]], Totals]:
    """The output, in order of the input, and the totals."""
    results, done = ResultsFile(path), []
    async with httpx.AsyncClient(
        transport=httpx.MockTransport(handler), base_url="http://test"
    ) as http:
        runner = BatchRunner(http, results, patience=patience, done=lambda: done.append(1))
        try:
            await runner.run(batch, concurrency)
        finally:
            results.close()
    outputs = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(done) == len(outputs)
    return sorted(outputs, key=lambda output: output["custom_id"] or ""), runner.totals


def completion(**fields: Any) -> httpx.Response:
    answer = {
        "id": "cmpl-1",
        "choices": [{"index": 0, "text": "y"}],
        "usage": {"prompt_tokens": 2, "completion_tokens": 3},
    }
    return httpx.Response(200, json={**answer, **fields}, headers={"x-request-id": "r1"})


async def test_every_line_has_its_answer(tmp_path: Path) -> None:
    received: list[tuple[str, bytes]] = []

    def handler(request: httpx.Request) -> httpx.Response:
        received.append((request.url.path, request.content))
        return completion()

    outputs, totals = await run(tmp_path / "out", handler, lines(5))
    assert [output["custom_id"] for output in outputs] == [f"c{i}" for i in range(5)]
    assert (
        outputs[0]["response"]["status_code"] == 200
        and outputs[0]["response"]["request_id"] == "r1"
    )
    assert outputs[0]["response"]["body"]["id"] == "cmpl-1" and outputs[0]["error"] is None
    assert totals == Totals(succeeded=5, prompt_tokens=10, completion_tokens=15)
    assert received == [("/v1/completions", b'{"prompt": "x"}')] * 5


async def test_no_more_than_the_limit_run_at_once(tmp_path: Path) -> None:
    running, max_running = 0, 0

    async def handler(_: httpx.Request) -> httpx.Response:
        nonlocal running, max_running
        running += 1
        max_running = max(max_running, running)
        await asyncio.sleep(0.002)
        running -= 1
        return completion()

    await run(tmp_path / "out", handler, lines(20), concurrency=4)
    assert max_running == 4


async def test_a_refusal_is_an_answer_where_others_are_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A line that never fits beside others does not keep a batch from its end."""
    monkeypatch.setattr(module, "FIRST_WAIT", 0.001)
    num_refused = 0

    def handler(request: httpx.Request) -> httpx.Response:
        nonlocal num_refused
        if b"large" not in request.content:
            return completion()
        num_refused += 1
        error = {"error": {"message": "busy"}}
        return httpx.Response(529 if num_refused % 2 else 429, json=error)

    fields = {"method": "POST", "url": "/v1/completions", "body": {"prompt": "large"}}
    large = parse_line(json.dumps({"custom_id": "large", **fields}).encode(), 9)
    async with httpx.AsyncClient(
        transport=httpx.MockTransport(handler), base_url="http://test"
    ) as http:
        sender = LineSender(http, patience=float("inf"), max_refusals=4)
        asked = asyncio.ensure_future(sender.answer(large))
        while num_refused < 8:  # of a server that answers nobody
            await asyncio.sleep(0.001)
        assert not asked.done()
        asked.cancel()  # it would be counted below
        with contextlib.suppress(asyncio.CancelledError):
            await asked
        sender = LineSender(http, patience=float("inf"), max_refusals=4)
        num_refused = 0
        refused, _ = await asyncio.gather(sender.answer(large), sender.answer(lines(1)[0]))
    assert refused.response is not None and refused.response.status_code == 429
    assert not refused.succeeded and num_refused >= 4


async def test_a_failure_is_a_line_and_does_not_end_the_run(tmp_path: Path) -> None:
    answers = [
        httpx.Response(400, json={"error": {"message": "bad"}}),
        httpx.Response(500, text="<html>\n"),
        completion(),
    ]
    bad = parse_line(b"{", 4)
    outputs, totals = await run(
        tmp_path / "out", lambda _: answers.pop(0), [*lines(3), bad], concurrency=1
    )
    by_id = {output["custom_id"]: output for output in outputs}
    assert (
        by_id["c0"]["response"]["body"] == {"error": {"message": "bad"}}
        and by_id["c0"]["error"] is None
    )
    assert by_id["c1"]["response"] == {"status_code": 500, "request_id": "", "body": None}
    assert by_id["c1"]["error"] == {
        "code": "invalid_response",
        "message": "no JSON: <html>",
        "line": 2,
    }
    assert by_id["c2"]["response"]["status_code"] == 200
    assert by_id[None]["error"]["code"] == "invalid_line" and by_id[None]["error"]["line"] == 4
    assert (totals.succeeded, totals.failed) == (1, 3)


async def test_an_answer_of_several_lines_becomes_one(tmp_path: Path) -> None:
    pretty = httpx.Response(200, text=json.dumps({"text": "a\nb", "usage": None}, indent=2))
    outputs, _ = await run(tmp_path / "out", lambda _: pretty, lines(1))
    assert outputs[0]["response"]["body"] == {"text": "a\nb", "usage": None}


async def test_a_busy_server_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FIRST_WAIT", 0.001)
    tries: list[Any] = [
        httpx.Response(429, headers={"retry-after": "0"}),
        httpx.Response(503, headers={"retry-after": "Fri, 21 Nov"}),
        httpx.ReadError("gone"),
        httpx.ConnectError(""),
        completion(),
    ]

    def handler(_: httpx.Request) -> httpx.Response:
        answer = tries.pop(0)
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, httpx.Response)
        return answer

    outputs, _ = await run(tmp_path / "out", handler, lines(1))
    assert outputs[0]["response"]["status_code"] == 200 and not tries


@pytest.mark.parametrize(
    ("status", "error", "message"),
    [
        (503, EngineError, "the server answers 503: no model"),
        (429, EngineError, "the server answers 429"),
        (401, ConfigError, "the server refuses the key: no model"),
        (0, EngineError, "the server cannot be reached: ConnectError"),
    ],
)
async def test_what_would_fail_every_line_ends_the_run(
    tmp_path: Path, status: int, error: type[Exception], message: str
) -> None:
    """The lines that it affects are left to a later run."""

    def handler(request: httpx.Request) -> httpx.Response:
        if not status:
            raise httpx.ConnectError("")
        return httpx.Response(status, json={"error": {"message": "no model"}})

    with pytest.raises(error, match=message) as caught:
        await run(tmp_path / "out", handler, lines(9), patience=0)
    assert "same command" in (getattr(caught.value, "hint", None) or "")
    assert (tmp_path / "out").read_text() == ""


async def test_interrupting_leaves_whole_lines(tmp_path: Path) -> None:
    async def handler(request: httpx.Request) -> httpx.Response:
        await asyncio.sleep(0.001)
        return completion()

    task = asyncio.ensure_future(run(tmp_path / "out", handler, lines(1000)))
    async with asyncio.timeout(10):
        while not (tmp_path / "out").exists() or not (tmp_path / "out").read_bytes():
            await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    finished = ResultsFile(tmp_path / "out")
    assert 0 < len(finished.finished) < 1000
    finished.close()


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://x", "http://", "http://h\x00"])
def test_what_is_no_url(url: str) -> None:
    with pytest.raises(ConfigError, match="is no URL"):
        remote_client(url, None)


async def test_without_a_server() -> None:
    async with remote_client("http://127.0.0.1:9/v1/", "key") as http:
        assert http.headers["authorization"] == "Bearer key"
        assert str(http.base_url) == "http://127.0.0.1:9"
        with pytest.raises(ConfigError, match=r"cannot reach http://127\.0\.0\.1:9"):
            await check_server(http)


class Clock:
    """Time passes only in a sleep."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.pauses = 1000.0, list[float]()
        monkeypatch.setattr(module, "time", self)
        monkeypatch.setattr(asyncio, "sleep", self.sleep)

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


async def test_a_rate_limited_server_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For minutes, if each minute brings an answer: patience begins anew with every answer."""
    clock = Clock(monkeypatch)
    windows: list[int] = []

    def handler(_: httpx.Request) -> httpx.Response:
        if windows and clock.now < windows[-1] + 60:
            return httpx.Response(429, headers={"retry-after": "60"})
        windows.append(int(clock.now))
        return completion()

    outputs, totals = await run(tmp_path / "out", handler, lines(6), patience=120, concurrency=1)
    assert totals.succeeded == 6 and len(outputs) == 6
    assert clock.pauses == [60.0] * 5, "what the server asks for is kept in full"


async def test_a_long_pause_is_kept_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    with pytest.raises(EngineError, match="answers 429"):
        await run(
            tmp_path / "out",
            lambda _: httpx.Response(429, headers={"retry-after": "600"}),
            lines(1),
            patience=120,
        )
    assert clock.pauses == [600.0]


def test_retry_after_as_a_date() -> None:
    assert parse_retry_after("Wed, 21 Oct 2015 07:28:00 GMT") == 0
    assert (parse_retry_after("Wed, 21 Oct 2099 07:28:00 GMT") or 0) > 10**8
    assert parse_retry_after("soon") is parse_retry_after("") is None
