"""`twostroke bench serve` against real servers on loopback."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.bench.raw_server import HEAD, RawServer, chunk
from tests.server.running import running_server
from tests.server.scripted import Script, ScriptedEngine
from twostroke.bench import transport
from twostroke.bench.client import Bench
from twostroke.bench.metrics import RequestRecord
from twostroke.bench.options import ServeBenchOptions
from twostroke.bench.workload import WorkItem
from twostroke.cli.main import run
from twostroke.core.errors import ConfigError, EngineError
from twostroke.core.request import FinishReason
from twostroke.gateway.gateway import Gateway
from twostroke.gateway.options import GatewayOptions

FLAGS = ["--num-prompts", "6", "--random-input-len", "12", "--random-output-len", "4"]


def bench(url: str, *flags: str) -> int:
    return run(["bench", "serve", "--base-url", url, *FLAGS, *flags])


def test_a_run_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    engine = ScriptedEngine(Script(seconds_per_step=0.02, finish_reason=FinishReason.LENGTH))
    path = tmp_path / "result.json"
    with running_server(engine) as url:
        targets = ["--goodput", "ttft:5000", "tpot:5000", "--output-json", str(path)]
        assert bench(url, "--max-concurrency", "2", "--ignore-eos", *targets) == 0
    captured = capsys.readouterr()
    for expected in (
        "Successful requests",
        "Request goodput (req/s)",
        "TTFT",
        "TPOT",
        "ITL",
        "E2EL",
        "p99",
    ):
        assert expected in captured.out
    assert captured.err == ""
    report = json.loads(path.read_text())
    assert (report["completed"], report["failed"]) == (6, 0)
    assert (report["model_id"], report["request_rate"]) == ("scripted", "inf")
    assert report["input_lens"] == [12] * 6 and report["output_lens"] == [4] * 6
    assert all(len(gaps) == 3 for gaps in report["itls"])
    assert all(15 <= 1000 * ttft < 5000 for ttft in report["ttfts"])
    assert report["median_tpot_ms"] >= 5
    # Three rounds of two requests, of four steps each.
    assert report["duration"] >= 3 * 4 * 0.015
    assert (
        report["request_goodput"]
        == report["request_throughput"]
        == pytest.approx(6 / report["duration"])
    )
    # One request to warm up, then ours.
    assert len(engine.submitted) == 7
    assert {len(call.prompt_token_ids) for call in engine.submitted} == {12}
    assert all(call.params.ignore_eos and call.params.temperature == 0 for call in engine.submitted)


def test_chats(tmp_path: Path) -> None:
    """`--backend openai-chat`: the event of the role is no token; lengths are the server's."""
    engine = ScriptedEngine(Script(seconds_per_step=0.01, finish_reason=FinishReason.LENGTH))
    path = tmp_path / "result.json"
    with running_server(engine) as url:
        assert (
            bench(url, "--backend", "openai-chat", "--ignore-eos", "--output-json", str(path)) == 0
        )
    report = json.loads(path.read_text())
    assert (report["completed"], report["backend"]) == (6, "openai-chat")
    assert all(len(gaps) == 3 for gaps in report["itls"])
    prompt = engine.tokenizer.decode(engine.submitted[1].prompt_token_ids)
    assert prompt.startswith("user: ") and len(prompt.split()) == 1 + 12 + 1
    assert report["input_lens"][0] == len(engine.submitted[1].prompt_token_ids)
    assert {call.params.max_tokens for call in engine.submitted} == {4}


def test_failures_are_counted_and_shown(capsys: pytest.CaptureFixture[str]) -> None:
    engine = ScriptedEngine(Script(error=EngineError("boom"), error_at=2))
    with running_server(engine) as url:
        assert bench(url, "--num-warmups", "0") == 1
        assert "error: all 6 requests failed: 6 x in mid-stream: boom" in capsys.readouterr().err
        assert bench(url) == 1
        assert "the first request failed: in mid-stream: boom" in capsys.readouterr().err
        assert bench(url, "--num-warmups", "0", "--model", "other") == 1
        assert "HTTP 404: the model 'other' does not exist here" in capsys.readouterr().err
        assert bench(url, "--num-warmups", "0", "--random-prefix-len", "200") == 1
        assert "HTTP 400: too long" in capsys.readouterr().err


def test_without_a_server(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("http://127.0.0.1:9") == 1
    assert "cannot reach http://127.0.0.1:9/v1" in capsys.readouterr().err


def test_arrivals_are_those_of_the_trace(tmp_path: Path) -> None:
    trace, path = tmp_path / "trace.csv", tmp_path / "result.json"
    trace.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n5.0,6,2\n5.2,7,3\n5.4,8,4\n")
    with running_server(ScriptedEngine()) as url:
        flags = ["--dataset-name", "trace", "--trace-path", str(trace), "--output-json", str(path)]
        assert run(["bench", "serve", "--base-url", url, *flags]) == 0
    report = json.loads(path.read_text())
    assert (report["input_lens"], report["output_lens"]) == ([6, 7, 8], [2, 3, 4])
    assert all(
        due <= sent < due + 2
        for due, sent in zip((0.0, 0.19, 0.39), report["start_times"], strict=True)
    )


async def test_no_more_than_max_concurrency_are_under_way() -> None:
    under_way, max_under_way = 0, 0

    async def answer(_: httpx.Request) -> httpx.Response:
        nonlocal under_way, max_under_way
        under_way += 1
        max_under_way = max(max_under_way, under_way)
        await asyncio.sleep(0.01)
        under_way -= 1
        return httpx.Response(200, content=TOKEN + USAGE + b"data: [DONE]\n\n")

    options = ServeBenchOptions(model="m", max_concurrency=3)
    async with Bench(options, httpx.MockTransport(answer)) as client:
        records, _ = await client.run([WorkItem(0.0, [1], 2)] * 10, lambda _: None)
    assert max_under_way == 3
    assert [record.error for record in records] == [None] * 10


def test_a_lost_connection_fails_its_request_alone() -> None:
    def lose(_: httpx.Request) -> httpx.Response:
        raise httpx.ReadError("")

    async def send() -> list[RequestRecord]:
        async with Bench(ServeBenchOptions(model="m"), httpx.MockTransport(lose)) as client:
            return (await client.run([WorkItem(0.0, [1], 2)] * 2, lambda _: None))[0]

    assert [record.error for record in asyncio.run(send())] == ["ReadError"] * 2


def test_any_failure_shows_in_the_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    """A script must not take a run half of which was refused for a measurement."""
    gateway = Gateway(GatewayOptions(requests_per_minute=5))
    with running_server(ScriptedEngine(), gateway=gateway) as url:
        assert bench(url, "--metric-percentiles", "75,25") == 1
    captured = capsys.readouterr()
    assert "failed: 2 x HTTP 429" in captured.err
    assert "p25" in captured.out and "p75" in captured.out and "median" not in captured.out


def test_a_server_without_usage_is_measured_by_its_events() -> None:
    record = ask(TOKEN + TOKEN + TOKEN + b"data: [DONE]\n\n")
    assert (record.error, record.counted, record.input_len, record.output_len) == (
        None,
        False,
        3,
        3,
    )


def test_usage_errors(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("http://127.0.0.1:9", "--goodput", "itl:3") == 2
    assert "--goodput 'itl:3' is not ttft:MS" in capsys.readouterr().err
    assert bench("http://127.0.0.1:9", "--metric-percentiles", "50,p99") == 2
    assert "--metric-percentiles must be whole numbers" in capsys.readouterr().err
    assert bench("http://127.0.0.1:9", "--output-json", "/nowhere/at/all.json") == 2
    assert "is no folder" in capsys.readouterr().err
    for url in ("http://host:port", "127.0.0.1:8000", "localhost", "ftp://localhost"):
        assert bench(url, "--model", "m") == 1
        assert "is no URL" in capsys.readouterr().err


def test_a_server_that_lists_no_models() -> None:
    transport = httpx.MockTransport(
        lambda _: httpx.Response(401, json={"error": {"message": "no key"}})
    )

    async def model() -> str:
        async with Bench(ServeBenchOptions(), transport) as client:
            return await client.model()

    with pytest.raises(ConfigError, match="/models: HTTP 401: no key"):
        asyncio.run(model())


def ask(body: bytes, status: int = 200) -> RequestRecord:
    """One request to a server that answers ``body``."""
    transport = httpx.MockTransport(lambda _: httpx.Response(status, content=body))

    async def send() -> RequestRecord:
        async with Bench(ServeBenchOptions(model="m"), transport) as client:
            return await client.send(WorkItem(0.0, [1, 2, 3], 4), 0.0)

    return asyncio.run(send())


ROLE = (
    b'data: {"choices": [{"delta": {"role": "assistant", "content": ""}, "finish_reason":'
    b" null}]}\n\n"
)
TEXT = b'data: {"choices": [{"delta": {"content": "a"}}]}\n\n'
LAST = b'data: {"choices": [{"delta": {}, "finish_reason": "stop"}]}\n\n'
TOKEN = b'data: {"choices": [{"text": "a"}], "extra": 1}\r\n\r\n'
USAGE = b'data: {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}\n\n'


def test_a_stream_with_comments_and_carriage_returns() -> None:
    record = ask(b": ping\n\n" + TOKEN + TOKEN + USAGE + b"data: [DONE]\n\n")
    assert (record.error, record.input_len, record.output_len, len(record.itls)) == (None, 3, 2, 1)


def test_what_counts_as_a_token_of_a_chat() -> None:
    """Not the role, nor the end, which here comes together with the last text."""
    record = ask(ROLE + TEXT + TEXT + LAST + USAGE + b"data: [DONE]\n\n")
    assert (record.error, len(record.itls)) == (None, 1)
    assert ask(ROLE + USAGE + b"data: [DONE]\n\n").error == "the server sent no token"


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ((TOKEN + USAGE,), "the stream ended without [DONE]"),
        ((USAGE + b"data: [DONE]\n\n",), "the server sent no token"),
        ((b"data: {oops}\n\n",), "what is no completion"),
        ((b'data: {"error": "gone"}\n\n',), "in mid-stream: gone"),
        ((b"<html>bad gateway", 502), "HTTP 502: <html>bad gateway"),
        ((b'{"error": {"message": "slow down"}}', 429), "HTTP 429: slow down"),
    ],
)
def test_what_is_no_complete_answer_is_a_failure(answer: Any, error: str) -> None:
    assert error in (ask(*answer).error or "")


async def test_an_error_shows_though_the_server_then_stalls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transport, "PATIENCE_SECONDS", 0.02)
    server = RawServer([HEAD, chunk(TOKEN), chunk(b'data: {"error": "gone"}\n\n'), asyncio.Event()])
    async with server.listen() as url, Bench(ServeBenchOptions(base_url=url, model="m")) as client:
        record = await asyncio.wait_for(client.send(WorkItem(0.0, [1], 2), 0.0), 10)
    assert record.error == "in mid-stream: gone"


async def test_proxies_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("no_proxy", "NO_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    proxy = RawServer(
        [HEAD, chunk(TOKEN), chunk(TOKEN + USAGE), chunk(b"data: [DONE]\n\n"), chunk(b"")]
    )
    async with proxy.listen() as url:
        monkeypatch.setenv("http_proxy", url)
        async with Bench(ServeBenchOptions(base_url="http://served.test", model="m")) as client:
            record = await client.send(WorkItem(0.0, [1, 2, 3], 4), 0.0)
    assert (record.error, record.output_len, len(record.itls)) == (None, 2, 1)
    assert proxy.requests[0].startswith(b"POST http://served.test/v1/completions HTTP/1.1\r\n")


@pytest.mark.parametrize(
    ("url", "authorization"),
    [
        ("http://served.test/v1/", "Bearer secret"),
        ("http://me:a%20word@served.test", "Basic bWU6YSB3b3Jk"),
    ],
)
async def test_the_key_of_a_request(
    url: str, authorization: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key of the environment, unless the URL has a user."""
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    requests = []

    def answer(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        return httpx.Response(200, content=TOKEN + b"data: [DONE]\n\n")

    async with Bench(
        ServeBenchOptions(base_url=url, model="m"), httpx.MockTransport(answer)
    ) as client:
        assert (await client.send(WorkItem(0.0, [1], 2), 0.0)).error is None
    headers = requests[0].headers
    assert (headers["authorization"], headers["accept-encoding"]) == (authorization, "identity")
    assert headers["host"] == "served.test"
