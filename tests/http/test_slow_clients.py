"""Clients that send or read slowly are cut off; those that have nothing to do are not."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import Callable
from http.client import HTTPResponse
from typing import Any

import httpx
import pytest

from tests.http.test_connection import HEAD, answer, connected
from tests.server.running import running_server, wait_until
from tests.server.scripted import Script, ScriptedEngine
from twostroke.http.body_size import BODIES_IN_MEMORY, SMALL_BODY, BodyMemory, HeldBody
from twostroke.http.connection import BoundedProtocol
from twostroke.http.errors import BodyMemoryFullError
from twostroke.server.http import lifecycle

TEXT = b'{"prompt": "the dog"}'
PIECE = "the quick brown fox " * 500


def sent_until_answered(
    opened: socket.socket, pieces: Callable[[], bytes], every: float, seconds: float
) -> float:
    """Seconds until the server answers or closes, while a piece is sent ``every`` so many."""
    began = time.monotonic()
    opened.settimeout(every)
    while time.monotonic() - began < seconds:
        try:
            opened.sendall(pieces())
            if opened.recv(1, socket.MSG_PEEK):
                break
        except TimeoutError:
            continue
        except (BrokenPipeError, ConnectionResetError):
            break
    opened.settimeout(5)
    return time.monotonic() - began


@pytest.mark.parametrize("start", [HEAD, HEAD + b"content-length: 4000\r\n\r\n"])
def test_a_request_that_drips(start: bytes) -> None:
    """A byte now and then moved the deadline, for hours."""
    options: dict[str, Any] = {"client_timeout": 0.5, "min_client_rate": 1000}
    with running_server(ScriptedEngine(), **options) as url, connected(url) as opened:
        opened.sendall(start)
        seconds = sent_until_answered(opened, lambda: b"x", 0.02, 5)
        assert 0.4 < seconds < 3
        assert answer(opened) == (408, "request_timeout")


def test_a_slow_body_at_the_least_rate() -> None:
    """The deadline moves with the bytes: a large body over a slow line is served."""
    options: dict[str, Any] = {"client_timeout": 0.5, "min_client_rate": 5_000}
    body = TEXT.ljust(60_000)
    with running_server(ScriptedEngine(), **options) as url, connected(url) as opened:
        opened.sendall(HEAD + b"content-length: %d\r\n\r\n" % len(body))
        for start in range(0, len(body), 3000):
            opened.sendall(body[start : start + 3000])
            time.sleep(0.07)  # 1.4 s in all
        response = HTTPResponse(opened)
        response.begin()
        assert response.status == 200


def test_large_bodies_have_one_memory() -> None:
    """Forty half-sent bodies held a gigabyte. Small ones are served beside them."""
    size = 2**18
    head = HEAD + b"content-length: %d\r\n\r\n" % size
    num_fitting = size * BODIES_IN_MEMORY // (size - 1)
    with running_server(ScriptedEngine(), max_body_size=size) as url, contextlib.ExitStack() as all:
        opened = [all.enter_context(connected(url)) for _ in range(num_fitting + 4)]
        for connection in opened:
            connection.sendall(head + b" " * (size - 1))
        time.sleep(0.5)
        refused = []
        for connection in opened:
            connection.settimeout(0.05)
            with contextlib.suppress(TimeoutError):
                response = HTTPResponse(connection)
                response.begin()
                refused.append(response)
        assert len(refused) == 4
        for response in refused:
            assert (response.status, response.getheader("retry-after")) == (503, "1")
            assert json.loads(response.read())["error"]["code"] == "body_memory_full"
        small = httpx.post(url + "/v1/completions", json={"prompt": "x" * 20}, timeout=5)
        assert small.status_code == 200
        large = {"prompt": "the dog", "user": None, "stop": None, "x" * SMALL_BODY: 0}
        assert httpx.post(url + "/v1/completions", json=large, timeout=5).status_code == 503
        for connection in opened[:8]:
            connection.close()
        # Their room is there again, and what has been parsed takes none.
        for _ in range(2 * num_fitting):
            wait_until(
                lambda: httpx.post(url + "/v1/completions", json=large).status_code == 400, 5
            )


def test_a_key_leaves_room_for_the_bodies_of_others() -> None:
    """One key's half-sent bodies took all memory, and another's had a 503."""
    memory = BodyMemory(16 * SMALL_BODY, lambda: 1)
    held = [HeldBody(memory, "alice") for _ in range(5)]
    with pytest.raises(BodyMemoryFullError, match="this key's"):
        for body in held:
            body.add(2 * SMALL_BODY)
    HeldBody(memory, "bob").add(3 * SMALL_BODY)
    with pytest.raises(BodyMemoryFullError):
        HeldBody(memory, "alice").add(2 * SMALL_BODY)
    for body in held:
        body.release()
    assert set(memory.num_bytes) == {"bob"}


def take_slowly(opened: socket.socket, num_bytes: int, every: float, seconds: float) -> int:
    """How many bytes came before the connection was cut, within so many seconds."""
    began, num_taken = time.monotonic(), 0
    while time.monotonic() - began < seconds:
        try:
            piece = opened.recv(num_bytes)
        except ConnectionResetError:
            break
        if not piece:
            break
        num_taken += len(piece)
        time.sleep(every)
    return num_taken


def slow_reader(url: str) -> socket.socket:
    """A connection of which the kernel keeps little."""
    opened = socket.socket()
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    address = httpx.URL(url)
    opened.connect((address.host, address.port))
    opened.settimeout(5)
    return opened


def test_a_client_that_takes_a_byte_of_its_stream_now_and_then() -> None:
    """That was enough to keep its request, and its blocks."""
    engine = ScriptedEngine(Script(pieces=(PIECE,) * 600, endless=True))
    options: dict[str, Any] = {"client_timeout": 0.5, "min_client_rate": 2**20}
    with running_server(engine, **options) as url, slow_reader(url) as opened:
        body = json.dumps({"prompt": "x", "max_tokens": 90, "stream": True}).encode()
        opened.sendall(HEAD + b"content-length: %d\r\n\r\n" % len(body) + body)
        take_slowly(opened, 1000, 0.01, 2.5)
        assert engine.aborted


def test_a_client_that_takes_a_byte_of_its_answer_now_and_then() -> None:
    """That was enough to keep seven megabytes in memory, for days."""
    engine = ScriptedEngine(Script(pieces=(PIECE,) * 90))
    options: dict[str, Any] = {"client_timeout": 0.5, "min_client_rate": 2**20}
    with running_server(engine, **options) as url, slow_reader(url) as opened:
        body = json.dumps({"prompt": "x", "max_tokens": 90, "n": 8}).encode()
        opened.sendall(HEAD + b"content-length: %d\r\n\r\n" % len(body) + body)
        num_taken = take_slowly(opened, 1000, 0.01, 2.5)
        num_taken += take_slowly(opened, 2**20, 0, 30)  # the kernel has kept some
        assert num_taken < 8 * 90 * len(PIECE)


def test_the_end_of_an_answer_that_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Below uvicorn's high-water mark nothing was paused, so nothing was watched."""
    protocols: list[BoundedProtocol] = []

    class SlowlySending(BoundedProtocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            transport.set_write_buffer_limits(high=2**30)
            protocols.append(self)

    monkeypatch.setattr(lifecycle, "BoundedProtocol", SlowlySending)
    engine = ScriptedEngine(Script(pieces=(PIECE,) * 90))
    with running_server(engine, client_timeout=0.3) as url, slow_reader(url) as opened:
        body = json.dumps({"prompt": "x", "max_tokens": 90, "n": 8}).encode()
        opened.sendall(HEAD + b"content-length: %d\r\n\r\n" % len(body) + body)
        wait_until(lambda: bool(protocols) and protocols[0].transport.is_closing(), 10)
        assert take_slowly(opened, 2**20, 0, 30) < 8 * 90 * len(PIECE)


def test_a_slow_model_is_no_slow_client() -> None:
    """Nothing is pending between its tokens, however long they take."""
    engine = ScriptedEngine(Script(pieces=("the ",) * 8, seconds_per_step=0.3))
    options: dict[str, Any] = {"client_timeout": 0.2, "min_client_rate": 2**20}
    with running_server(engine, **options) as url:
        body = {"prompt": "x", "max_tokens": 8, "stream": True}
        answer = httpx.post(url + "/v1/completions", json=body, timeout=30)
        assert answer.text.endswith("data: [DONE]\n\n")
        assert answer.text.count("the ") == 8


def test_a_reader_at_the_least_rate() -> None:
    """Two megabytes, a pause after each piece: slow, and served to the end."""
    engine = ScriptedEngine(Script(pieces=(PIECE,) * 90))
    options: dict[str, Any] = {"client_timeout": 0.5, "min_client_rate": 2**15}
    with running_server(engine, **options) as url, slow_reader(url) as opened:
        body = json.dumps({"prompt": "x", "max_tokens": 90, "n": 2}).encode()
        head = HEAD + b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
        opened.sendall(head + body)
        began = time.monotonic()
        assert take_slowly(opened, 2**14, 0.01, 30) > 90 * len(PIECE) * 2
        assert time.monotonic() - began > 0.6


def test_an_idle_connection_owes_nothing() -> None:
    """What was pending at the end of an answer is not held against the next."""
    engine = ScriptedEngine(Script(pieces=(PIECE,) * 50))
    options: dict[str, Any] = {"client_timeout": 0.4, "min_client_rate": 2**18}
    with running_server(engine, **options) as url, httpx.Client() as client:
        for _ in range(3):
            body = {"prompt": "x", "max_tokens": 50}
            assert client.post(url + "/v1/completions", json=body).status_code == 200
            time.sleep(0.35)
