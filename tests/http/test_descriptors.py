"""A server without free descriptors says so once, keeps those waiting, and goes on afterwards."""

from __future__ import annotations

import json
import socket
import time
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from tests.server.running import ServerProcess, running_process, wait_until

LIMIT = 64
LIMITED = (
    "import resource, runpy;"
    f"resource.setrlimit(resource.RLIMIT_NOFILE, ({LIMIT}, {LIMIT}));"
    "runpy.run_module('tests.server.serve_scripted', run_name='__main__')"
)
HEALTH = b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"


def log_lines(server: ServerProcess) -> list[str]:
    """What it has logged. The lines at its start, which may still arrive, are no log lines."""
    return [line for line in server.stderr.splitlines() if " twostroke." in line]


def num_descriptors(server: ServerProcess) -> int:
    return len(list(Path(f"/proc/{server.process.pid}/fd").iterdir()))


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts descriptors in /proc")
def test_descriptors_run_out_and_come_back() -> None:
    with running_process("-c", LIMITED, json.dumps({"port": 0})) as server, ExitStack() as stack:
        url = server.url()
        address = (urlsplit(url).hostname, urlsplit(url).port)

        def connect() -> socket.socket:
            return stack.enter_context(socket.create_connection(address, timeout=10))

        crowd = [connect() for _ in range(2 * LIMIT)]
        wait_until(lambda: "Too many open files" in server.stderr)
        late = connect()
        late.sendall(HEALTH)
        time.sleep(2.5)  # in which it tries again twice
        assert num_descriptors(server) == LIMIT
        told = log_lines(server)
        assert len(told) == 1 and "WARNING" in told[0] and "ulimit -n" in told[0]
        # Those that it has are served meanwhile.
        crowd[0].sendall(HEALTH)
        assert crowd[0].recv(100).startswith(b"HTTP/1.1 200")
        for opened in crowd:
            opened.close()
        assert late.recv(100).startswith(b"HTTP/1.1 200"), "it waited, and was not refused"
        assert httpx.get(url + "/health").status_code == 200
        wait_until(lambda: num_descriptors(server) < LIMIT // 2)
        assert log_lines(server) == told
