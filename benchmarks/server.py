"""``twostroke serve`` as a process of its own, for benchmarks that talk to it over HTTP."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

DEADLINE = 120.0
# Asking more often would take time from the server that is loading.
POLL_SECONDS = 0.025
STOP_SECONDS = 15.0


class ServerFailedError(RuntimeError):
    """The server ended, or was not ready in time; carries the end of its log."""


@dataclass(frozen=True, slots=True)
class ServerProcess:
    """A server that is ready: its URL, its process, and the seconds that starting took."""

    url: str
    process: subprocess.Popen[bytes]
    ready_seconds: float


@contextmanager
def running_server(
    model: str, log: Path, *flags: str, environment: Mapping[str, str] | None = None
) -> Iterator[ServerProcess]:
    """Start a server on a free port of loopback, wait until it is healthy, and end it.

    Args:
        log: File for what it writes.
        flags: Of ``twostroke serve``.
        environment: Variables that it gets beside ours.

    Raises:
        ServerFailedError: It ended, or was not healthy within ``DEADLINE`` seconds.
    """
    port = free_port()
    command = [sys.executable, "-m", "twostroke", "serve", model, "--port", str(port), *flags]
    with log.open("wb") as output:
        began = time.perf_counter()
        variables = {**os.environ, **(environment or {})}
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=variables,
        )
        try:
            url = f"http://127.0.0.1:{port}"
            _wait_until_healthy(process, url, began, log)
            yield ServerProcess(url, process, time.perf_counter() - began)
        finally:
            _end(process)


@contextmanager
def running_workers(
    model: str, log: Path, roles: Sequence[str], *flags: str
) -> Iterator[ServerProcess]:
    """Start workers that divide the cores, and a router; wait until all are there; end them.

    Args:
        log: File for what the router writes; what workers write is beside it.
        roles: Of each worker.
        flags: Of ``twostroke worker``.

    Raises:
        ServerFailedError: They were not there within ``DEADLINE`` seconds.
    """
    threads = str(max(1, (os.cpu_count() or 1) // len(roles)))
    addresses = [f"127.0.0.1:{free_port()}" for _ in roles]
    logs = [log.with_suffix(f".{number}") for number in range(len(roles))]
    port = free_port()
    named = [part for address in addresses for part in ("--worker", address)]
    commands = [["route", model, "--port", str(port), *named]]
    for role, address in zip(roles, addresses, strict=True):
        own = ["--kv-listen", f"127.0.0.1:{free_port()}"] if role == "prefill" else []
        commands.append(["worker", model, "--role", role, "--listen", address, *own, *flags])
    processes: list[subprocess.Popen[bytes]] = []
    began = time.perf_counter()
    try:
        for command, path in zip(commands, (log, *logs), strict=True):
            with path.open("wb") as output:
                processes.append(
                    subprocess.Popen(
                        [sys.executable, "-m", "twostroke", *command],
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=subprocess.STDOUT,
                        env={**os.environ, "OMP_NUM_THREADS": threads},
                    )
                )
        url = f"http://127.0.0.1:{port}"
        _wait_until_healthy(processes[0], url, began, log)
        while not all(" is here" in path.read_text() for path in logs):
            if time.perf_counter() - began > DEADLINE:
                raise ServerFailedError("\n".join(path.read_text()[-2000:] for path in logs))
            time.sleep(POLL_SECONDS)
        yield ServerProcess(url, processes[0], time.perf_counter() - began)
    finally:
        for process in processes:
            _end(process)


def free_port() -> int:
    """A port of loopback that is free at this moment."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def _wait_until_healthy(
    process: subprocess.Popen[bytes], url: str, began: float, log: Path
) -> None:
    with httpx.Client(trust_env=False, timeout=DEADLINE) as client:
        while time.perf_counter() - began < DEADLINE:
            if process.poll() is not None:
                raise ServerFailedError(f"the server ended with {process.returncode}:\n{tail(log)}")
            try:
                if client.get(f"{url}/health").status_code == 200:
                    return
            except httpx.TransportError:
                pass  # it does not listen yet
            time.sleep(POLL_SECONDS)
    raise ServerFailedError(f"the server was not healthy after {DEADLINE:g} s:\n{tail(log)}")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def tail(log: Path) -> str:
    """The last lines of a log."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-15:])


def metric(text: str, name: str) -> float:
    """One gauge of a Prometheus exposition."""
    return next(
        float(line.split()[-1]) for line in text.splitlines() if line.startswith(name + "{")
    )
