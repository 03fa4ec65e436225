"""Redis servers that tests kill, stall and bring back: a real one, and a fake one behind a relay.

The real one is Debian's package ``redis-server``. The fake one runs everywhere: fakeredis speaks
the protocol over TCP, and a relay in front of it dies and stalls as a process would.
"""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

import redis
from fakeredis import TcpFakeServer
from limits.aio.storage.redis.bridge import RedisBridge

NO_REDIS = "no redis-server here; get it with: apt-get install redis-server"


def has_redis() -> bool:
    return shutil.which("redis-server") is not None


class MortalRedis(Protocol):
    """A Redis at ``url`` that keeps its counts while it is dead."""

    url: str

    def kill(self) -> None:
        """Its connections end, and new ones are refused."""

    def restart(self) -> None:
        """On the same port; returns when it answers."""

    def stall(self) -> None:
        """Connections stay open, and nothing is answered."""

    def resume(self) -> None:
        """What was asked meanwhile is answered."""


@contextmanager
def fake_redis() -> Iterator[TcpFakeServer]:
    """A Redis that speaks the real protocol on loopback, without a Redis."""
    server = TcpFakeServer(("127.0.0.1", 0), server_type="redis")
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    with redis.Redis(port=server.server_address[1]) as client:
        # It hangs up on a script that it does not know, instead of saying so.
        client.script_load(RedisBridge.SCRIPT_INCR_EXPIRE)
    yield server
    server.shutdown()
    server.server_close()


class RelayedRedis:
    """A fake Redis behind a relay that can die and stall."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._flowing = threading.Event()
        self._flowing.set()
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._accept()

    def kill(self) -> None:
        for each in [self._listener, *self._sockets]:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        self._sockets.clear()

    def restart(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self._accept()

    def stall(self) -> None:
        self._flowing.clear()

    def resume(self) -> None:
        self._flowing.set()

    def _accept(self) -> None:
        threading.Thread(target=self._accept_all, args=(self._listener,), daemon=True).start()

    def _accept_all(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
                self._sockets += [client, server]
                for pair in ((client, server), (server, client)):
                    threading.Thread(target=self._pump, args=pair, daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                self._flowing.wait()
                sink.sendall(data)
        for each in (source, sink):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


class RealRedis:
    """A ``redis-server`` of its own, which writes every count to disk before it answers."""

    def __init__(self, folder: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._folder = folder
        self._start()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def restart(self) -> None:
        self._start()

    def stall(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def _start(self) -> None:
        flags = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self._folder)]
        flags += ["--save", "", "--appendonly", "yes", "--appendfsync", "always"]
        self._process = subprocess.Popen(["redis-server", *flags], stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 10
        with redis.Redis(port=self.port) as client:
            while True:
                try:
                    client.ping()
                    return
                except redis.RedisError:
                    assert time.monotonic() < deadline, "redis-server does not start"
                    time.sleep(0.02)


@contextmanager
def mortal_redis(kind: str, folder: Path) -> Iterator[MortalRedis]:
    """``real`` or ``fake``; dead at the end."""
    if kind == "real":
        real = RealRedis(folder)
        try:
            yield real
        finally:
            real.kill()
        return
    with fake_redis() as server:
        relayed = RelayedRedis(server.server_address[1])
        try:
            yield relayed
        finally:
            relayed.resume()
            relayed.kill()
