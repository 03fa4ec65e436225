"""Protects: bench serve ends, and says what is wrong, whatever the server answers."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Callable

import pytest

from tests.bench.raw_server import HEAD, chunk
from twostroke.bench.client import Bench
from twostroke.bench.options import ServeBenchOptions
from twostroke.bench.workload import WorkItem
from twostroke.core.errors import ConfigError

ITEM = WorkItem(0.0, [10, 11, 12], 4)
TOKEN = b'data: {"choices": [{"text": "x"}]}\n\n'
USAGE = b'data: {"choices": [], "usage": {"prompt_tokens": %s, "completion_tokens": %s}}\n\n'
DONE = b"data: [DONE]\n\n"
SECONDS = 10.0  # far more than any of it takes, far less than for ever
Pieces = Callable[[], AsyncIterator[bytes]]


def stream(*pieces: bytes, then: bytes = b"", seconds: float = 0.0) -> Pieces:
    """A body; ``then`` is repeated without an end."""

    async def body() -> AsyncIterator[bytes]:
        yield HEAD
        for piece in pieces:
            yield chunk(piece)
        while then:
            yield chunk(then)
            await asyncio.sleep(seconds)
        yield chunk(b"")

    return body


def whole(head: bytes, body: bytes = b"", then: bytes = b"") -> Pieces:
    async def answer() -> AsyncIterator[bytes]:
        yield head + b"\r\n" + body
        while then:
            yield then
            await asyncio.sleep(0)

    return answer


def silent(before: bytes = b"") -> Pieces:
    async def answer() -> AsyncIterator[bytes]:
        yield before
        await asyncio.sleep(60)

    return answer


OK = b"HTTP/1.1 200 OK\r\n"
HTML = b"<!doctype html><title>Sign in</title>"
LIES = {
    "HTML": (
        whole(OK + b"Content-Type: text/html\r\nContent-Length: 37\r\n", HTML),
        "no stream of events",
    ),
    "NaN": (stream(TOKEN, USAGE % (b"3", b"NaN"), DONE), "no completion"),
    "negative usage": (stream(TOKEN, USAGE % (b"3", b"-7"), DONE), "claims"),
    "more than asked": (stream(TOKEN, USAGE % (b"3", b"5000"), DONE), "claims"),
    "huge usage": (stream(TOKEN, USAGE % (b"9" * 400, b"1"), DONE), "claims|no completion"),
    "no token": (stream(DONE), "no token"),
    "not UTF-8": (
        stream(b'data: {"choices": [{"text": "\xff\xfe"}], "usage": "\xff"}\n\n'),
        "no compl",
    ),
    "a word of a chat that is not UTF-8": (
        stream(b'data: {"choices": [{"delta": {"content": "\xff"}}]}\n\n'),
        "no completion",
    ),
    "a refusal that is not UTF-8": (
        whole(b"HTTP/1.1 400 No\r\nContent-Length: 14\r\n", b'{"error":"\xff"}  '),
        "HTTP 400",
    ),
    "deep": (stream(b"data: " + b'{"choices": ' + b"[" * 5000 + b"\n\n"), "no completion"),
    "no JSON": (stream(b"data: hello\n\n"), "no completion"),
    "no end of tokens": (stream(then=TOKEN), "events and no end"),
    "no end of a line": (stream(then=b"x" * 65536), "a line of more than"),
    "only comments": (stream(TOKEN, then=b": wait\n\n", seconds=0.02), "no token for 0.7 s"),
    "silence": (silent(), "no token for 0.7 s"),
    "silence after a token": (silent(HEAD + chunk(TOKEN)), "no token for 0.7 s"),
    "no HTTP": (whole(b"SSH-2.0-OpenSSH_9.2\r\n"), "no HTTP"),
    "no end of headers": (
        whole(OK + b"a: b", then=b"x: " + b"y" * 999 + b"\r\n"),
        "headers do not end",
    ),
    "an endless refusal": (whole(b"HTTP/1.1 500 Oh\r\n", then=b"z" * 65536), "HTTP 500: z"),
    "a deep refusal": (
        whole(b"HTTP/1.1 400 No\r\nContent-Length: 5000\r\n", b'{"error":' * 555 + b"12345"),
        "HTTP 400",
    ),
    "cut off": (whole(OK + b"Content-Length: 100\r\n", b"data: "), "closed the connection"),
}


async def serve(pieces: Pieces) -> tuple[asyncio.Server, str]:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            async for piece in pieces():
                writer.write(piece)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    return server, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize("lie", LIES)
async def test_a_lie_fails_its_request_in_time(lie: str) -> None:
    pieces, error = LIES[lie]
    server, url = await serve(pieces)
    options = ServeBenchOptions(base_url=url, model="m", stall_timeout=0.7)
    async with Bench(options) as bench:
        began = time.monotonic()
        async with asyncio.timeout(SECONDS):
            record = await bench.send(ITEM, began)
    server.close()
    assert record.error is not None and len(record.error) < 300
    assert re.search(error, record.error), record.error


async def test_a_slow_server_is_no_liar() -> None:
    """A token now and then is progress, however long the whole answer takes."""

    async def slowly() -> AsyncIterator[bytes]:
        yield HEAD
        for _ in range(4):
            await asyncio.sleep(0.5)
            yield chunk(TOKEN)
        yield chunk(USAGE % (b"3", b"4") + DONE) + chunk(b"")

    server, url = await serve(slowly)
    # The reader of a stream that stalls wakes after a second, so that is the finest step.
    async with Bench(ServeBenchOptions(base_url=url, model="m", stall_timeout=1.8)) as bench:
        record = await bench.send(ITEM, time.perf_counter())
    server.close()
    assert (record.error, record.output_len) == (None, 4)


@pytest.mark.parametrize(
    "body",
    [
        HTML,
        b'{"data": []}',
        json.dumps({"data": [{"id": "x" * 5000}]}).encode(),
        json.dumps({"data": [{"id": "\x1b[2J"}]}).encode(),
        b'{"data": [{"id": 7}]}',
        b"[" * 100_000,
    ],
)
async def test_a_list_without_a_model(body: bytes) -> None:
    head = OK + b"Content-Length: %d\r\n" % len(body)
    server, url = await serve(whole(head, body))
    async with Bench(ServeBenchOptions(base_url=url)) as bench:
        with pytest.raises(ConfigError, match="lists no model"):
            await bench.model()
    server.close()
