"""A server as a process: banner, drain on SIGTERM, second signal, failed loads, ports in use."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import msgspec
import pytest

from tests.server.running import ROOT, ServerProcess, running_process, wait_until
from twostroke.core.errors import ConfigError
from twostroke.observability.json_log import LogLine
from twostroke.server.options import ServerOptions
from twostroke.server.process import listen

SLOW = {"pieces": ["the "] * 40, "seconds_per_step": 0.02}
WORK = {"prompt": "x", "max_tokens": 40, "stream": True}


@contextmanager
def server_process(**options: Any) -> Iterator[ServerProcess]:
    """A scripted engine behind ``serve``."""
    with running_process(
        "-m", "tests.server.serve_scripted", json.dumps({"port": 0, **options})
    ) as server:
        yield server


def test_banner_holds_a_command_that_works() -> None:
    with server_process() as server:
        server.url()
        command = next(line for line in server.stderr.splitlines() if line.startswith("curl"))
        output = subprocess.run(
            ["sh", "-c", command + " -s"], check=True, capture_output=True, text=True
        ).stdout
        assert output.rstrip().endswith("data: [DONE]")
        assert "40 blocks of 4, 160 tokens, 1 request of maximum length (100)" in server.stderr


def test_logs_as_json() -> None:
    """Each line that the server writes, the banner's too, and they name the request alike."""
    options = {"log_format": "json", "access_log": True, "enable_log_requests": True}
    with server_process(**options) as server:
        url = server.url()
        body = {"prompt": "the dog", "user": 'ann"\n{'}
        answer = httpx.post(
            url + "/v1/completions", json=body, headers={"x-request-id": "client-1"}
        )
        server.process.send_signal(signal.SIGTERM)
        server.end()
        lines = [msgspec.json.decode(line, type=LogLine) for line in server.stderr.splitlines()]
    by_logger = {line.logger: line for line in lines}
    assert "curl -N" in by_logger["twostroke.server.http.lifecycle"].message
    access, call = by_logger["twostroke.access"], by_logger["twostroke.requests"]
    assert access.request_id == call.request_id == answer.json()["id"]
    assert (access.fields["status"], access.fields["answer_id"]) == (200, "client-1")
    assert call.fields["labels"] == {"user": body["user"]} and call.fields["output_tokens"] > 0


def test_sigterm_drains_and_exits_with_zero() -> None:
    with server_process(script=SLOW, shutdown_timeout=5) as server, httpx.Client() as client:
        url = server.url()
        with client.stream("POST", url + "/v1/completions", json=WORK) as response:
            lines = response.iter_lines()
            assert next(lines).startswith("data: ")
            server.process.send_signal(signal.SIGTERM)
            wait_until(lambda: httpx.get(url + "/health").json()["status"] == "draining")
            refused = httpx.post(url + "/v1/completions", json=WORK)
            assert refused.status_code == 503
            assert refused.json()["error"]["code"] == "shutting_down"
            assert "retry-after" in refused.headers
            events = [line for line in lines if line]
        assert len(events) == 41  # 39 more pieces, why it ended, [DONE]
        assert events[-1] == "data: [DONE]"
        assert server.end() == 0
        assert "draining: 1 unfinished" in server.stderr


def test_second_signal_exits_at_once() -> None:
    script = {"endless": True, "seconds_per_step": 0.01}
    with (
        server_process(script=script) as server,
        httpx.stream("POST", server.url() + "/v1/completions", json=WORK) as response,
    ):
        lines = response.iter_lines()
        assert next(lines)
        server.process.send_signal(signal.SIGINT)
        wait_until(lambda: "draining" in server.stderr)
        server.process.send_signal(signal.SIGINT)
        assert server.end(2) == 128 + signal.SIGINT


def test_sighup_drains_however_often_and_without_a_terminal() -> None:
    """A terminal that closes sends it twice, by its shell and by the kernel, and takes stderr."""
    with server_process(script=SLOW, shutdown_timeout=5) as server, httpx.Client() as client:
        url = server.url()
        with client.stream("POST", url + "/v1/completions", json=WORK) as response:
            lines = response.iter_lines()
            assert next(lines).startswith("data: ")
            server.process.send_signal(signal.SIGHUP)
            wait_until(lambda: httpx.get(url + "/health").json()["status"] == "draining")
            server.process.send_signal(signal.SIGHUP)
            assert [line for line in lines if line][-1] == "data: [DONE]"
        assert server.end() == 0


def test_a_lost_terminal_does_not_keep_the_drain_from_ending() -> None:
    command = [sys.executable, "-m", "tests.server.serve_scripted"]
    script = {"endless": True, "seconds_per_step": 0.01}
    options = json.dumps({"port": 0, "script": script, "shutdown_timeout": 60.0})
    master, slave = os.openpty()
    process = subprocess.Popen([*command, options], stderr=slave, cwd=ROOT)
    try:
        os.close(slave)
        written = b""
        while b"curl" not in written:
            written += os.read(master, 65536)
        match = re.search(rb"http://127.0.0.1:\d+", written)
        assert match is not None
        url = match[0].decode()
        with httpx.stream("POST", url + "/v1/completions", json=WORK) as response:
            lines = response.iter_lines()  # dropped, it would close the stream
            assert next(lines)
            os.close(master)
            process.send_signal(signal.SIGHUP)
            wait_until(lambda: httpx.get(url + "/health").json()["status"] == "draining")
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()


def test_signal_while_loading_exits_at_once() -> None:
    with server_process(load_seconds=60, log_level="debug") as server:
        wait_until(lambda: "Started server process" in server.stderr)
        started = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        assert server.end() == 0
        assert time.monotonic() - started < 15  # loading would go on for a minute


def test_failed_load_ends_the_server() -> None:
    with server_process(fail=True) as server:
        assert server.end(20) == 1
        assert "no weights" in server.stderr


def test_taken_port_is_one_clear_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            ConfigError, match=rf"127\.0\.0\.1:{port}: Address already in use"
        ) as caught:
            listen(ServerOptions(port=port))
    assert "another port" in (caught.value.hint or "")
    with pytest.raises(ConfigError, match=r"cannot listen on 203\.0\.113\.1"):
        listen(ServerOptions(host="203.0.113.1", port=0))
    with pytest.raises(ConfigError, match=r"no\.such\.host.*: (?!Unknown error)[^()]+$"):
        listen(ServerOptions(host="no.such.host.invalid", port=0))
