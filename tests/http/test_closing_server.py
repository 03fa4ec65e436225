"""Protects: a server ends cleanly beside a client that goes on sending."""

from __future__ import annotations

import socket
import threading
from urllib.parse import urlsplit

import pytest

from tests.server.running import running_server
from tests.server.scripted import ScriptedEngine

HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 9000000\r\n\r\n"


def test_no_connection_outlasts_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """An event loop that closes beside one raises an error."""
    errors: list[object] = []
    monkeypatch.setattr(threading, "excepthook", errors.append)
    with running_server(ScriptedEngine(), max_body_size=2**16) as url:
        address = urlsplit(url)
        client = socket.create_connection((address.hostname, address.port))
        client.sendall(HEAD + b" " * 2**20)
        assert client.recv(12) == b"HTTP/1.1 413"
    with client:
        assert not errors
