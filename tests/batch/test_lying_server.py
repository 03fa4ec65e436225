"""``batch --url`` against a server that lies: each line has an outcome, and nothing hangs.

The server speaks through raw sockets. Each line's prompt names the lie that answers it; honest
lines stand between, and must not be touched.
"""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from twostroke.batch import answers, runner
from twostroke.batch.lines import GoodLine, Line, parse_line
from twostroke.batch.results import ResultsFile
from twostroke.batch.runner import BatchRunner, Totals, check_server, remote_client
from twostroke.core.errors import ConfigError, EngineError

Writer = asyncio.StreamWriter
CHOICE = {"index": 0, "text": "y"}
HONEST = {
    "id": "cmpl-1",
    "choices": [CHOICE],
    "usage": {"prompt_tokens": 2, "completion_tokens": 3},
}


def response(body: Any, status: str = "200 OK", length: int | None = None, head: str = "") -> bytes:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    size = len(raw) if length is None else length
    return f"HTTP/1.1 {status}\r\ncontent-length: {size}\r\n{head}\r\n".encode() + raw


def honest(**fields: Any) -> bytes:
    return response({**HONEST, **fields})


def usage(prompt: object, completion: object) -> dict[str, Any]:
    return {"prompt_tokens": prompt, "completion_tokens": completion}


# Each with the code of its output line's error, `None` where the answer can be used.
BYTES: dict[str, tuple[bytes, str | None]] = {
    "wrong id": (honest(id="another", custom_id="honest0"), None),
    "number as id": (honest(id=10**30), None),
    "id of a megabyte": (honest(id="x" * 2**20), None),
    "negative usage": (honest(usage=usage(-(10**9), -1)), None),
    "absurd usage": (honest(usage=usage(10**40, True)), None),
    "usage is a list": (honest(usage=[1]), None),
    "no choices": (response({"id": "x"}), "invalid_response"),
    "choices are null": (honest(choices=None), "invalid_response"),
    "no choice": (honest(choices=[]), "invalid_response"),
    "too many choices": (honest(choices=[CHOICE] * 2), "invalid_response"),
    "choice without text": (honest(choices=[{"index": 0}]), "invalid_response"),
    "choice is a number": (honest(choices=[7]), "invalid_response"),
    "a list": (response([HONEST]), "invalid_response"),
    "html": (response(b"<html>\r\n<h1>Welcome</h1>"), "invalid_response"),
    "nothing": (response(b""), "invalid_response"),
    "no content": (b"HTTP/1.1 204 No Content\r\n\r\n", "invalid_response"),
    "nan": (response(b'{"choices": [{"text": "y", "logprob": NaN}]}'), "invalid_response"),
    "half a surrogate": (response(b'{"choices": [{"text": "\xed\xa0\x80"}]}'), "invalid_response"),
    "deep": (response(b'{"choices": ' + b"[" * 9000 + b"]" * 9000 + b"}"), "invalid_response"),
    "less deep": (response(b'{"choices": ' + b"[" * 300 + b"]" * 300 + b"}"), "invalid_response"),
    "compressed": (
        response(gzip.compress(b"x" * 2**20), head="content-encoding: gzip\r\n"),
        "invalid_response",
    ),
    "short length": (response(HONEST, length=9), "invalid_response"),
    "long length": (response(HONEST, length=999), "broken_answer"),
    "two lengths": (response(HONEST, head="content-length: 7\r\n"), "broken_answer"),
    "negative length": (response(HONEST, length=-5), "broken_answer"),
    "length of 4000 digits": (
        response(HONEST, length=int("9" * 4000)),
        "broken_answer",
    ),
    "half a head": (b"HTTP/1.1 200 OK\r\ncontent-", "broken_answer"),
    "no head": (b"", "broken_answer"),
    "no HTTP": (b"SSH-2.0-OpenSSH_9.9\r\n", "broken_answer"),
    "huge head": (response(HONEST, head=f"x-pad: {'x' * 2**20}\r\n"), "broken_answer"),
    "bad chunk": (
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        "broken_answer",
    ),
    "half a body": (response(HONEST)[:-20], "broken_answer"),
    "bad redirect": (
        response(b"", "302 Found", head="location: http://[bad\r\n"),
        "invalid_response",
    ),
    "two answers at once": (honest() + honest(id="of another line"), None),
}


async def write_endless_body(writer: Writer) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    while True:
        writer.write(b"10000\r\n" + b" " * 2**16 + b"\r\n")
        await writer.drain()


async def write_drops(writer: Writer) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 999999\r\n\r\n")
    while True:
        writer.write(b" ")
        await writer.drain()
        await asyncio.sleep(0.01)


async def write_endless_head(writer: Writer) -> None:
    while True:
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        await writer.drain()
        await asyncio.sleep(0.001)


async def write_nothing(writer: Writer) -> None:
    await asyncio.sleep(60)


STREAMS: dict[str, tuple[Callable[[Writer], Awaitable[None]], str]] = {
    "endless body": (write_endless_body, "answer_too_large"),
    "drops": (write_drops, "timeout"),
    "endless head": (write_endless_head, "timeout"),
    "silence": (write_nothing, "timeout"),
}
REDIRECT = response({"to": "myself"}, "307 Again", head="location: /v1/completions\r\n")


class LyingServer:
    """Keeps connections open where the lie is a whole response, so that more could come of it."""

    def __init__(self) -> None:
        self.num_requests: dict[str, int] = {}
        self.models = response({"data": []})
        self.lies = dict(BYTES)

    async def serve(self, reader: asyncio.StreamReader, writer: Writer) -> None:
        try:
            while await self._answer(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: Writer) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        if head.startswith(b"get"):
            writer.write(self.models)
            return True
        size = int(head.partition(b"content-length: ")[2].split(b"\r\n")[0])
        lie = json.loads(await reader.readexactly(size))["prompt"]
        self.num_requests[lie] = self.num_requests.get(lie, 0) + 1
        if lie in STREAMS:
            await STREAMS[lie][0](writer)
        elif lie == "redirect loop":
            writer.write(REDIRECT)
        else:
            sent, code = self.lies.get(lie, (honest(), None))
            writer.write(sent)
            await writer.drain()
            return code != "broken_answer"
        return True


@asynccontextmanager
async def lying_server() -> AsyncIterator[tuple[LyingServer, str]]:
    lying = LyingServer()
    tasks: set[asyncio.Task[None]] = set()

    def connected(reader: asyncio.StreamReader, writer: Writer) -> None:
        tasks.add(asyncio.ensure_future(lying.serve(reader, writer)))

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield lying, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0.01)  # in which the transports close


def line(number: int, prompt: str) -> Line:
    fields = {"method": "POST", "url": "/v1/completions", "body": {"prompt": prompt}}
    return parse_line(json.dumps({"custom_id": prompt, **fields}).encode(), number)


async def run(
    path: Path,
    url: str,
    prompts: list[str],
    *,
    patience: float = 5,
    concurrency: int = 8,
    timeout: float = 30.0,
) -> tuple[dict[str, dict[str, Any]], Totals]:
    results = ResultsFile(path)
    try:
        async with remote_client(url, None) as http, asyncio.timeout(60):
            batch = BatchRunner(
                http, results, patience=patience, done=lambda: None, timeout=timeout
            )
            await batch.run([line(i, text) for i, text in enumerate(prompts, 1)], concurrency)
    finally:
        results.close()
    outputs = [json.loads(raw) for raw in path.read_bytes().split(b"\n")[:-1]]
    assert len({output["custom_id"] for output in outputs}) == len(outputs)
    # What a later run reads must be readable, too.
    ResultsFile(path).close()
    return {output["custom_id"]: output for output in outputs}, batch.totals


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "FIRST_WAIT", 0.001)
    monkeypatch.setattr(answers, "MAX_ANSWER_BYTES", 2**21)


@pytest.mark.parametrize("concurrency", [1, 16])
async def test_every_line_has_an_outcome(tmp_path: Path, concurrency: int) -> None:
    lies = [*BYTES, "endless body", "redirect loop"]
    prompts = [text for i, lie in enumerate(lies) for text in (lie, f"honest{i}")]
    async with lying_server() as (lying, url):
        outputs, totals = await run(tmp_path / "out", url, prompts, concurrency=concurrency)
    codes = {
        prompt: output["error"] and output["error"]["code"] for prompt, output in outputs.items()
    }
    expected = dict.fromkeys(prompts)
    expected |= {lie: code for lie, (_, code) in BYTES.items()}
    expected["endless body"] = "answer_too_large"
    assert codes == expected
    for i in range(len(lies)):
        assert outputs[f"honest{i}"]["response"]["body"] == HONEST
        assert lying.num_requests[f"honest{i}"] == 1
    assert outputs["redirect loop"]["response"]["status_code"] == 307
    for lie, code in expected.items():
        assert lying.num_requests[lie] == (runner.MAX_BROKEN if code == "broken_answer" else 1)
    usable = sum(code is None for code in expected.values()) - 1
    assert totals.succeeded == usable
    # What cannot be a number of tokens is not counted.
    bodies = [output["response"] and output["response"]["body"] for output in outputs.values()]
    believed = sum(
        isinstance(body, dict) and body.get("usage") == HONEST["usage"] for body in bodies
    )
    assert (totals.prompt_tokens, totals.completion_tokens) == (2 * believed, 3 * believed)


@pytest.mark.parametrize(
    "lie", sorted(lie for lie, (_, code) in STREAMS.items() if code == "timeout")
)
async def test_an_answer_that_does_not_come_is_a_timeout(tmp_path: Path, lie: str) -> None:
    """Alone: on a busy machine an honest answer may take as long as this one is waited for."""
    async with lying_server() as (lying, url):
        outputs, _ = await run(tmp_path / "out", url, [lie], timeout=1.0)
    assert outputs[lie]["error"]["code"] == "timeout"
    assert lying.num_requests[lie] == 1


async def test_the_number_of_choices_is_what_was_asked_for(tmp_path: Path) -> None:
    texts = [{"index": i, "text": "y"} for i in range(4)]
    body = {"prompt": ["two choices each", "of two prompts"], "n": 2}
    fields = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": body}
    asked = parse_line(json.dumps(fields).encode(), 1)
    assert isinstance(asked, GoodLine)
    for choices, fault in ((texts, None), (texts[:3], "the answer has 3 choices instead of 4")):
        raw = json.dumps({**HONEST, "choices": choices}).encode()
        answer = answers.Answer(200, httpx.Headers(), raw)
        output, _ = answers.output_line(asked, answer)
        assert (output.error and output.error.message) == fault


async def test_what_is_under_way_together_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "MAX_ANSWER_BYTES", 2**40)
    monkeypatch.setattr(answers, "MAX_BYTES_UNDER_WAY", 2**22)
    async with lying_server() as (_, url):
        outputs, _ = await run(tmp_path / "out", url, ["endless body", "honest"], concurrency=2)
    assert outputs["endless body"]["error"]["code"] == "answer_too_large"
    assert outputs["honest"]["error"] is None


async def test_a_pause_without_end_is_not_kept(tmp_path: Path) -> None:
    """The run ends and a later one sends the line: neither does it hang, nor is the line lost."""
    async with lying_server() as (lying, url):
        for pause in ("9" * 400, "999999999", "\xb2", "Fri, 31 Dec 9999 23:59:59 GMT"):
            busy = response(b"", "429 Wait", head=f"retry-after: {pause}\r\n")
            lying.lies["pause"] = (busy, None)
            with pytest.raises(EngineError, match="answers 429"):
                await run(tmp_path / "out", url, ["pause"], patience=0.01)
            assert (tmp_path / "out").read_bytes() == b""


async def test_a_server_that_only_closes_is_away(tmp_path: Path) -> None:
    """As with a proxy whose server is gone: the run ends, and no line counts as failed."""
    async with lying_server() as (lying, url):
        lying.models = b"\r\n\r\n\x00"
        with pytest.raises(EngineError, match="cannot be reached"):
            await run(tmp_path / "out", url, ["no head"], patience=0.05)
    assert (tmp_path / "out").read_bytes() == b""


async def test_a_server_that_is_none_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for models, reason, seconds in (
        (b"SSH-2.0\r\n\r\n", "cannot reach", 30.0),
        (b"HTTP/1.1 2", "no answer within", 0.2),
    ):
        monkeypatch.setattr(runner, "PROBE_SECONDS", seconds)
        async with lying_server() as (lying, url), remote_client(url, None) as http:
            lying.models = models
            with pytest.raises(ConfigError, match=reason):
                await check_server(http)
