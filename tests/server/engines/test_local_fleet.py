"""``make workers`` and ``make route``: the two commands that docs/reference/workers.md gives."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx

from tests.server.engines.processes import started_by
from tests.server.engines.streamed_calls import chat_calls
from tests.server.engines.streamed_content import content_of
from tests.server.running import ROOT, wait_until

GUIDE = (ROOT / "docs" / "reference" / "workers.md").read_text()
PORTS = ("8000", "8101", "8102")
BODY = {
    **chat_calls(max_tokens=400)["plain"],
    "seed": 3,
    "ignore_eos": True,
    "temperature": 0.9,
    "stream": True,
}


def recipe(target: str) -> str:
    """What ``make`` would run."""
    listed = subprocess.run(
        ["make", "-n", target, "FLAGS="], cwd=ROOT, capture_output=True, text=True, check=True
    )
    commands = listed.stdout.replace("\\\n", " ").splitlines()
    return next(line for line in commands if f"twostroke {target.rstrip('s')}" in line)


@contextmanager
def shell(command: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": path}
    with log.open("wb") as errors:
        process = subprocess.Popen(
            ["sh", "-c", command],
            cwd=ROOT,
            env=environment,
            stderr=errors,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # the group of this shell alone
        process.wait()


def worker_on(process: subprocess.Popen[bytes], port: str) -> int:
    """The process of the worker that listens on a port."""
    (pid,) = started_by(process.pid, f":{port}")
    return pid


def stream(url: str, workers: dict[str, int] | None = None) -> list[str]:
    """The events; after some of them, of the workers by port the busy one is killed."""
    lines: list[str] = []
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=BODY, timeout=60) as answer:
        for line in answer.iter_lines():
            if line.startswith("data"):
                lines.append(line)
            if len(lines) == 20 and workers is not None:
                metrics = httpx.get(f"{url}/metrics", timeout=30).text
                found = re.search(r'requests_running\{engine="[^"]*:(\d+)".*\} 1', metrics)
                assert found is not None
                os.kill(workers[found[1]], signal.SIGKILL)
                workers = None
    assert workers is None, "it was over before"
    return lines


def test_a_chat_survives_the_end_of_a_worker(tmp_path: Path) -> None:
    assert "make workers" in GUIDE and "make route" in GUIDE
    with ExitStack() as stack:
        free = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in PORTS]
        own = dict(zip(PORTS, (str(each.getsockname()[1]) for each in free), strict=True))
    commands = {target: recipe(target) for target in ("workers", "route")}
    for target, command in commands.items():
        for port, taken in own.items():
            command = re.sub(rf"\b{port}\b", taken, command)
        python = f"{shlex.quote(sys.executable)} -m twostroke"
        commands[target] = re.sub(r"\S*bin/twostroke", python, command)
    url = f"http://127.0.0.1:{own['8000']}"
    log = tmp_path / "workers.log"
    with (
        shell(commands["route"], tmp_path / "route.log"),
        shell(commands["workers"], log) as workers,
    ):
        wait_until(lambda: log.read_text().count(" is here") == 2)
        wait_until(lambda: httpx.get(f"{url}/health", timeout=30).status_code == 200)
        expected = stream(url)
        by_port = {own[port]: worker_on(workers, own[port]) for port in PORTS[1:]}
        assert content_of(stream(url, by_port)) == content_of(expected)
        assert httpx.get(f"{url}/health", timeout=30).status_code == 200
