"""Connections end that send without end, stop in the middle, or take nothing."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPResponse
from urllib.parse import urlsplit

import httpx
import pytest

from tests.server.http_calls import USER
from tests.server.running import running_server, wait_until
from tests.server.scripted import Script, ScriptedEngine
from twostroke.http import connection
from twostroke.server.http import lifecycle
from twostroke.server.http.lifecycle import KEEP_ALIVE_SECONDS, uvicorn_config
from twostroke.server.options import ServerOptions

HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"


@contextmanager
def connected(url: str) -> Iterator[socket.socket]:
    address = urlsplit(url)
    with socket.create_connection((address.hostname, address.port), timeout=5) as opened:
        yield opened


def answer(opened: socket.socket) -> tuple[int, str]:
    """Status and code of an error with an id; the server must close the connection after it."""
    data = b""
    try:
        while piece := opened.recv(65536):
            data += piece
    except ConnectionResetError:  # it has closed with more of ours on the way
        pass
    head, _, body = data.partition(b"\r\n\r\n")
    assert b"connection: close" in head.lower()
    assert b"\r\nx-request-id: req-" in head
    return int(head.split()[1]), json.loads(body)["error"]["code"]


def send_until_refused(opened: socket.socket, piece: bytes, max_bytes: int) -> int:
    """How many bytes could be sent before the server answered or closed."""
    sent = 0
    opened.setblocking(False)
    while sent < max_bytes:
        try:
            at = sent % len(piece)
            sent += opened.send(piece[at:] + piece[:at])
        except BlockingIOError:
            time.sleep(0.001)
        except (BrokenPipeError, ConnectionResetError):
            break
    opened.settimeout(5)
    return sent


@pytest.mark.parametrize("size", [60_000, 70_000, 200_000])
def test_a_large_head_in_one_piece(size: int) -> None:
    with running_server(ScriptedEngine()) as url, connected(url) as opened:
        opened.sendall(
            b"GET /health HTTP/1.1\r\nconnection: close\r\nx: " + b"a" * size + b"\r\n\r\n"
        )
        if size < connection.MAX_HEAD_BYTES:
            assert opened.recv(100).startswith(b"HTTP/1.1 200")
        else:
            assert answer(opened) == (431, "head_too_large")


@pytest.mark.parametrize(
    "start",
    [
        b"GET /health HTTP/1.1\r\nx: ",
        b"GET /",
        HEAD + b"transfer-encoding: chunked\r\n\r\n1\r\n \r\n0\r\nx: ",
    ],
)
def test_a_head_or_trailer_without_end(start: bytes) -> None:
    """It was read, and kept, for as long as it came."""
    with running_server(ScriptedEngine()) as url, connected(url) as opened:
        opened.sendall(start)
        assert send_until_refused(opened, b"a" * 10_000, 20_000_000) < 20_000_000


def test_many_headers_without_end() -> None:
    with running_server(ScriptedEngine()) as url, connected(url) as opened:
        opened.sendall(b"GET /health HTTP/1.1\r\n")
        assert send_until_refused(opened, b"x: a\r\n" * 2000, 20_000_000) < 20_000_000


@pytest.mark.parametrize(
    "sent", [b"", b"GET /health HT", HEAD, HEAD + b"content-length: 10\r\n\r\n{"]
)
def test_a_request_that_stops_in_the_middle(sent: bytes) -> None:
    with running_server(ScriptedEngine(), client_timeout=0.2) as url, connected(url) as opened:
        opened.sendall(sent)
        assert answer(opened) == (408, "request_timeout")
        assert httpx.get(url + "/health").status_code == 200


def test_half_a_request_behind_a_stream_does_not_write_into_it() -> None:
    """A whole 408 in the middle of the first answer would be read as its next chunk."""
    body = json.dumps({"prompt": "the dog", "max_tokens": 20, "stream": True}).encode()
    first = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    first += b"content-length: %d\r\n\r\n%s" % (len(body), body)
    half = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n{"
    engine = ScriptedEngine(Script(pieces=("the ",) * 20, seconds_per_step=0.05))
    with running_server(engine, client_timeout=0.2) as url, connected(url) as opened:
        opened.sendall(first + half)
        received = b""
        while data := opened.recv(65536):
            received += data
    assert received.startswith(b"HTTP/1.1 200") and b"data: " in received
    assert received.count(b"HTTP/1.1") == 1


def test_time_runs_only_while_the_client_is_awaited() -> None:
    """Neither a long answer nor an idle connection is a half-sent request."""
    engine = ScriptedEngine(Script(pieces=("the ",) * 8, seconds_per_step=0.05))
    with running_server(engine, client_timeout=0.2) as url, httpx.Client() as client:
        for _ in range(2):
            response = client.post(url + "/v1/chat/completions", json={"messages": USER})
            assert response.status_code == 200, response.text
            time.sleep(0.3)


def test_what_is_no_http_gets_an_error_of_the_usual_shape() -> None:
    with running_server(ScriptedEngine()) as url, connected(url) as opened:
        opened.sendall(b"hello\r\n\r\n")
        assert answer(opened) == (400, "invalid_value")


@pytest.mark.parametrize("cut", [None, 40, -20, -5])
@pytest.mark.parametrize("chunked", [False, True])
def test_an_offer_to_go_on_in_http2_is_ignored(cut: int | None, chunked: bool) -> None:
    """As Java's HttpClient makes it with every request to a plain URL; the bodies were lost."""
    offer = (
        b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings:"
        b" AAEAAEAAAAIAAAAB\r\n"
    )
    body = json.dumps({"prompt": "the dog", "max_tokens": 5}).encode()
    framed = b"transfer-encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    if not chunked:
        framed = b"content-length: %d\r\n\r\n%s" % (len(body), body)
    message = HEAD + offer + framed
    engine = ScriptedEngine()
    with running_server(engine) as url, connected(url) as opened:
        for _ in range(2):
            for piece in (message[:cut], b"" if cut is None else message[cut:]):
                opened.sendall(piece)
                time.sleep(0.02)
            response = HTTPResponse(opened)
            response.begin()
            assert response.status == 200
            assert json.loads(response.read())["choices"][0]["text"] == "the quick brown fox"
        opened.sendall(
            b"GET /health HTTP/1.1\r\nconnection: close, upgrade\r\nupgrade: websocket\r\n\r\n"
        )
        data = b"".join(iter(lambda: opened.recv(65536), b""))
        assert data.startswith(b"HTTP/1.1 200") and data.endswith(b'{"status":"ok"}')
    assert [request.params.max_tokens for request in engine.submitted] == [5, 5]


@pytest.mark.parametrize(
    "url", [b"http://[evil/x", b"http://[evil]/x", b"http://evil", b"http://[", b"//[/"]
)
def test_a_url_that_is_none(url: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """It was an exception in a callback, and no answer."""
    with running_server(ScriptedEngine()) as server, connected(server) as opened:
        opened.sendall(b"GET " + url + b" HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        data = b"".join(iter(lambda: opened.recv(65536), b""))
        assert data.startswith((b"HTTP/1.1 400", b"HTTP/1.1 404"))
        assert b"x-request-id: req-" in data
        assert not caplog.records


@pytest.mark.parametrize("length", [b"0" * 4301, b"0" * 21])
def test_a_length_of_thousands_of_digits(length: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """Python reads no number of more than 4,300: that was a 500 with a traceback."""
    with running_server(ScriptedEngine()) as url, connected(url) as opened:
        opened.sendall(HEAD + b"content-length: " + length + b"\r\n\r\n")
        response = HTTPResponse(opened)
        response.begin()
        assert response.status == 400
        assert "Content-Length" in json.loads(response.read())["error"]["message"]
        assert not caplog.records


@pytest.mark.parametrize("num_requests", [1_200, 3_000])
def test_many_offers_in_one_piece(
    num_requests: int, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """Each was one more level of calls, and Python has a thousand."""
    offer = b"GET /health HTTP/1.1\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n"
    last = b"GET /health HTTP/1.1\r\nconnection: close\r\n\r\n"
    with running_server(ScriptedEngine()) as url, connected(url) as opened:
        opened.settimeout(30)
        opened.sendall(offer * num_requests + last)
        data = b"".join(iter(lambda: opened.recv(65536), b""))
        assert data.count(b"HTTP/1.1 200 OK") == num_requests + 1
        assert not caplog.records
        assert "Error" not in capfd.readouterr().err


def test_requests_that_wait_behind_others_are_not_read_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After each answer as many more were read as fit into a piece: gigabytes, before any key."""
    lengths = [0]

    class WatchedProtocol(connection.BoundedProtocol):
        def on_headers_complete(self) -> None:
            super().on_headers_complete()
            lengths[0] = max(lengths[0], len(self.pipeline))

    monkeypatch.setattr(lifecycle, "BoundedProtocol", WatchedProtocol)
    get = b"GET / HTTP/1.1\r\n\r\n"
    with running_server(ScriptedEngine()) as url, connected(url) as opened:
        opened.setblocking(False)
        sent, deadline = 0, time.monotonic() + 2
        while time.monotonic() < deadline:
            with contextlib.suppress(BlockingIOError):
                sent += opened.send((get * 20_000)[sent % len(get) :])
            with contextlib.suppress(BlockingIOError):
                opened.recv(2**20)
            time.sleep(0.001)
    assert 0 < lengths[0] < 400  # 14,000 fit into what one read brings, and took 0.3 s


def test_pipelined_requests_are_all_answered_however_they_are_cut() -> None:
    """What stays unparsed while many wait is not lost, nor is a request that ends in it."""
    get = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"
    last = b"GET /health HTTP/1.1\r\nconnection: close\r\n\r\n"
    with running_server(ScriptedEngine()) as url, connected(url) as opened:
        opened.settimeout(60)
        opened.sendall(get * 2_000 + last[:11])
        data = b""
        while data.count(b"HTTP/1.1 200 OK") < 2_000:
            received = opened.recv(65536)
            assert received, "closed"
            data += received
        opened.sendall(last[11:])
        data += b"".join(iter(lambda: opened.recv(65536), b""))
        assert data.count(b"HTTP/1.1 200 OK") == 2_001


def test_empty_lines_are_no_request() -> None:
    """They kept a connection open for ever."""
    with running_server(ScriptedEngine(), client_timeout=0.3) as url, connected(url) as opened:
        for _ in range(20):
            try:
                opened.sendall(b"\r\n")
            except (BrokenPipeError, ConnectionResetError):
                break
            time.sleep(0.05)
        assert answer(opened) == (408, "request_timeout")


def test_the_server_is_no_proxy() -> None:
    with running_server(ScriptedEngine()) as url, connected(url) as opened:
        opened.sendall(b"CONNECT example.com:443 HTTP/1.1\r\nhost: example.com:443\r\n\r\n")
        assert answer(opened) == (400, "invalid_value")


def test_a_client_that_takes_nothing_loses_its_request() -> None:
    """Its answer would pile up in memory, and its blocks stay taken."""
    engine = ScriptedEngine(Script(pieces=("the quick brown fox " * 500,), endless=True))
    with running_server(engine, client_timeout=0.3) as url, connected(url) as opened:
        body = json.dumps({"prompt": "x", "max_tokens": 50, "stream": True}).encode()
        opened.sendall(HEAD + b"content-length: %d\r\n\r\n" % len(body) + body)
        wait_until(lambda: bool(engine.aborted), 10)


def test_idle_connections_outlive_those_of_clients() -> None:
    """At 5 s, the default, httpx and the server close at the same moment, and lose a request."""
    config = uvicorn_config(ScriptedEngine, ServerOptions())  # type: ignore[arg-type]
    assert config.timeout_keep_alive == KEEP_ALIVE_SECONDS > 60
