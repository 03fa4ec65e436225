"""A client that sends too much sees the refusal, whichever way it sends and reads."""

from __future__ import annotations

import http.client
import json
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from tests.server.running import running_server, wait_until
from tests.server.scripted import ScriptedEngine
from twostroke.gateway.gateway import Gateway
from twostroke.gateway.options import GatewayOptions
from twostroke.http import connection as connections
from twostroke.http import lingering

LIMIT = 2**16
MIB = 2**20
TIMES = 25
TYPE = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with running_server(ScriptedEngine(), max_body_size=LIMIT, allowed_hosts=()) as url:
        yield url


def by_urllib(url: str, body: bytes, **headers: str) -> int:
    request = urllib.request.Request(url + "/v1/completions", body, {**TYPE, **headers})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            assert json.load(error)["error"]["code"]
            return error.code


def connect(url: str) -> http.client.HTTPConnection:
    address = urlsplit(url)
    return http.client.HTTPConnection(str(address.hostname), address.port, timeout=10)


@pytest.mark.parametrize("size", [LIMIT + 1, 4 * MIB, 24 * MIB])
def test_urllib_sees_the_413(url: str, size: int) -> None:
    """It asks for the connection's end and reads once it has sent all: it saw a reset each time."""
    times = TIMES if size <= 4 * MIB else 5
    assert [by_urllib(url, b" " * size) for _ in range(times)] == [413] * times


def test_a_chunked_body_is_refused_on_its_way(url: str) -> None:
    """Its length is not known before: the refusal comes while it is being sent."""
    for _ in range(TIMES):
        connection = connect(url)
        pieces = iter([b" " * LIMIT] * 64)
        headers = {**TYPE, "connection": "close"}
        connection.request("POST", "/v1/completions", pieces, headers, encode_chunked=True)
        assert connection.getresponse().status == 413
        connection.close()


def test_the_next_request_of_a_connection_is_answered(url: str) -> None:
    connection = connect(url)
    for _ in range(TIMES):
        connection.request("POST", "/v1/completions", b" " * MIB, TYPE)
        answer = connection.getresponse()
        assert (answer.status, answer.read()[:9]) == (413, b'{"error":')
        connection.request("POST", "/v1/completions", b'{"prompt": "x"}', TYPE)
        answer = connection.getresponse()
        assert (answer.status, answer.read()[:6]) == (200, b'{"id":')
    connection.close()


def test_a_missing_key_is_told_beside_a_large_body() -> None:
    gateway = Gateway(GatewayOptions(api_key=("sk-secret",)))
    with running_server(ScriptedEngine(), gateway=gateway, allowed_hosts=()) as url:
        assert [by_urllib(url, b" " * 3 * MIB) for _ in range(TIMES)] == [401] * TIMES


def test_heads_that_are_too_long_are_told_too(url: str) -> None:
    for _ in range(TIMES):
        connection = connect(url)
        connection.putrequest("GET", "/health")
        for number in range(64):
            connection.putheader(f"x-{number}", "x" * 2**15)
        connection.endheaders()
        assert connection.getresponse().status == 431
        connection.close()


@pytest.mark.parametrize("keep", ["close", "keep-alive"])
def test_it_reads_on_for_so_many_bytes_only(
    url: str, keep: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MAX_BODY_BYTES", MIB)
    with sending(url, keep) as opened, pytest.raises(OSError):
        for _ in range(64):
            opened.sendall(b" " * MIB)


@pytest.mark.parametrize("keep", ["close", "keep-alive"])
def test_it_reads_on_for_so_many_seconds_only(
    url: str, keep: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lingering, "MAX_SECONDS", 0.05)
    with sending(url, keep) as opened:

        def is_cut() -> bool:
            try:
                opened.sendall(b" ")
            except OSError:
                return True
            return False

        wait_until(is_cut, 5)


def sending(url: str, keep: str) -> socket.socket:
    """A connection whose request was refused while its body has hardly begun."""
    address = urlsplit(url)
    opened = socket.create_connection((str(address.hostname), address.port or 0), timeout=10)
    head = f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: {keep}\r\n"
    opened.sendall((head + f"content-length: {2**40}\r\n\r\n ").encode())
    assert opened.recv(100).startswith(b"HTTP/1.1 413")
    return opened
