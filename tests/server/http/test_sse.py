"""Frames arrive in order and once, whichever way each takes, and whatever the client does."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar
from urllib.parse import urlsplit

import httpx
import pytest
from starlette.types import Message
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from tests.server.running import running_server, wait_until
from tests.server.scripted import Script, ScriptedEngine
from twostroke.http.chunk_writer import WRITE_CHUNK
from twostroke.http.connection import BoundedProtocol
from twostroke.server.http import lifecycle
from twostroke.server.http.sse import EventStream
from twostroke.server.openai.stream_end import DONE


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


class Wire:
    """Where a stream ends: by ``send``, which is slow, or by the extension, which refuses a third.

    A while is some turns of the event loop, not a time: the order of things is the same on any
    machine.
    """

    def __init__(self) -> None:
        self.body = b""
        self.messages: list[Message] = []
        self.aborted = 0
        self.tries = 0
        self.sending = False

    async def send(self, message: Message) -> None:
        self.sending = True
        await turns(5)
        self.sending = False
        self.messages.append(message)
        self.body += message.get("body", b"")

    def write(self, piece: bytes) -> bool:
        assert not self.sending
        assert self.messages, "the head comes first"
        self.tries += 1
        if self.tries % 3:
            self.body += piece
        return bool(self.tries % 3)

    async def receive(self) -> Message:
        await asyncio.sleep(60)
        return {"type": "http.disconnect"}

    def abort(self) -> None:
        self.aborted += 1

    def answer(self, stream: EventStream, **scope: Any) -> asyncio.Task[None]:
        return asyncio.ensure_future(stream({"type": "http", **scope}, self.receive, self.send))


@pytest.mark.parametrize(
    "extensions", [{}, {"extensions": None}, {"extensions": {}}, {"extensions": {WRITE_CHUNK}}]
)
@pytest.mark.parametrize("early", [0, 3])
async def test_frames_keep_their_order(extensions: dict[str, Any], early: int) -> None:
    """Pushed before the response starts, while something is sent, and while nothing is."""
    wire = Wire()
    if extensions.get("extensions"):
        extensions = {"extensions": {WRITE_CHUNK: wire.write}}
    stream = EventStream(wire.abort)
    frames = [b"%d\n" % i for i in range(60)]
    for frame in frames[:early]:
        stream.push(frame)
    answer = wire.answer(stream, **extensions)
    for i, frame in enumerate(frames[early:-1]):
        await turns(i % 11)
        stream.push(frame)
    stream.end(frames[-1] + DONE)
    await asyncio.wait_for(answer, 5)
    assert wire.body == b"".join(frames) + DONE
    assert wire.messages[0]["type"] == "http.response.start"
    assert [message["more_body"] for message in wire.messages[1:]] == [True] * (
        len(wire.messages) - 2
    ) + [False]
    assert wire.messages[-1]["body"].endswith(frames[-1] + DONE), "the end is one write"
    assert wire.aborted == 1
    assert wire.tries > 3 if extensions.get("extensions") else wire.tries == 0, (
        "one of three was not taken at once"
    )


async def test_a_failure_before_the_first_frame_is_raised() -> None:
    wire = Wire()
    stream = EventStream(wire.abort)
    answer = wire.answer(stream)
    await asyncio.sleep(0)
    stream.fail(ValueError("bad"))
    with pytest.raises(ValueError, match="bad"):
        await asyncio.wait_for(answer, 5)
    assert (wire.messages, wire.aborted) == ([], 1)


# ---- on real connections -------------------------------------------------------------------------


def request(max_tokens: int, path: str = "/v1/completions", **fields: object) -> bytes:
    body = json.dumps({"prompt": "x", "max_tokens": max_tokens, "stream": True, **fields}).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length:"
        f" {len(body)}\r\n\r\n"
    )
    return head.encode() + body


@contextmanager
def connected(url: str, receive_buffer: int | None = None) -> Iterator[socket.socket]:
    """A connection; ``receive_buffer`` bounds the bytes that the kernel keeps for its reader."""
    address = urlsplit(url)
    with socket.socket() as opened:
        if receive_buffer is not None:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        opened.settimeout(5)
        opened.connect((address.hostname, address.port))
        yield opened


def bodies(data: bytes) -> list[bytes]:
    """The bodies of chunked answers, one behind the other and nothing between."""
    result, start = [], 0
    while start < len(data):
        end = data.index(b"\r\n\r\n", start)
        assert (
            data.startswith(b"HTTP/1.1 200 OK", start)
            and b"transfer-encoding: chunked" in data[start:end]
        )
        body, start, size = b"", end + 4, -1
        while size:
            end = data.index(b"\r\n", start)
            size, start = int(data[start:end], 16), end + 2
            body += data[start : start + size]
            start += size + 2
            assert data[start - 2 : start] == b"\r\n"
        result.append(body)
    return result


def texts(body: bytes) -> list[str]:
    *events, reason, done, end = body.decode().split("\n\n")
    assert (done, end) == ("data: [DONE]", "")
    assert '"finish_reason":null' not in reason
    return [json.loads(event.removeprefix("data: "))["choices"][0]["text"] for event in events]


def anonymous(body: bytes) -> bytes:
    """Without what differs from one request to the next."""
    return re.sub(rb'"id":"[^"]*"|"created":\d+', b"", body)


@pytest.fixture
def sends(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What goes through all layers and ``send``."""
    seen: list[str] = []
    send = RequestResponseCycle.send

    async def watched(cycle: RequestResponseCycle, message: Any) -> None:
        seen.append(message["type"])
        await send(cycle, message)

    monkeypatch.setattr(RequestResponseCycle, "send", watched)
    return seen


class WatchedProtocol(BoundedProtocol):
    """Has small buffers, and notes when it must pause, and when it may go on."""

    paused: ClassVar[list[bool]] = []

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**18)
        super().connection_made(transport)

    def pause_writing(self) -> None:
        self.paused.append(True)
        super().pause_writing()

    def resume_writing(self) -> None:
        self.paused.append(False)
        super().resume_writing()


def test_a_slow_reader_gets_the_same_bytes(
    monkeypatch: pytest.MonkeyPatch, sends: list[str]
) -> None:
    """Its connection pauses and goes on while tokens come."""
    monkeypatch.setattr(lifecycle, "BoundedProtocol", WatchedProtocol)
    pieces = tuple(f"{i:4}" * 25_000 for i in range(90))
    engine = ScriptedEngine(Script(pieces=pieces))
    asked = request(90).replace(b"host: x", b"host: x\r\nconnection: close")
    with running_server(engine) as url:
        with connected(url) as fast:
            fast.sendall(asked)
            expected = b"".join(iter(lambda: fast.recv(2**20), b""))
        paused = WatchedProtocol.paused
        del paused[:], sends[:]
        engine.script.seconds_per_step = 0.01
        got = bytearray()
        with connected(url, receive_buffer=2**16) as slow:
            slow.sendall(asked)
            for _ in range(2):
                wait_until(lambda: paused[-1:] == [True])
                time.sleep(0.1)  # tokens come, and are kept
                while paused[-1]:
                    got += slow.recv(2**16)
            while piece := slow.recv(2**16):
                got += piece
    (expected,), (body,) = bodies(expected), bodies(bytes(got))
    assert texts(body) == list(pieces)
    assert anonymous(body) == anonymous(expected)
    assert 2 < sends.count("http.response.body") < 60, "some had to wait, most went past the layers"


def test_requests_on_one_connection_do_not_mix(sends: list[str]) -> None:
    """The second is there before the first is answered, and each is written past the layers."""
    engine = ScriptedEngine(
        Script(pieces=tuple(f"{i} " for i in range(40)), seconds_per_step=0.002)
    )
    with running_server(engine) as url, connected(url) as opened:
        last = request(30, echo=True).replace(b"host: x", b"host: x\r\nconnection: close")
        opened.sendall(request(40) + request(20) + last)
        answered = bodies(b"".join(iter(lambda: opened.recv(65536), b"")))
    expected = [f"{i} " for i in range(40)]
    assert [texts(body) for body in answered] == [expected, expected[:20], ["x0 ", *expected[1:30]]]
    # The head, what came before it was sent, and the end; with some to spare for a slow machine.
    assert len(sends) < 3 * 8


def test_a_server_without_the_extension(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "BoundedProtocol", "h11")
    engine = ScriptedEngine(
        Script(pieces=tuple(f"{i} " for i in range(40)), seconds_per_step=0.002)
    )
    with running_server(engine) as url:
        answer = httpx.post(
            url + "/v1/completions", json={"prompt": "x", "max_tokens": 40, "stream": True}
        )
    assert texts(answer.content) == [f"{i} " for i in range(40)]
