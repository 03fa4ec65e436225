"""Commands of twostroke as processes that benchmarks strike, start again, and wait for."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx

from benchmarks.server import STOP_SECONDS, ServerFailedError, free_port, tail
from tests.engine.workers.cutting_proxy import CuttingProxy
from twostroke.core.network.address import Address

START_SECONDS = 300.0  # on a machine that others use
STALL_SECONDS = 3.0
LEFT_SECONDS = STALL_SECONDS + 1.5  # until whatever waits has noticed
CACHE = ("--kv-cache-memory", "96MiB")
STALL = ("--stall-timeout", f"{STALL_SECONDS:g}")
LONG_PROMPTS = ("--prefill-min-tokens", "24")
_NOT_UP = re.compile(r"^twostroke:engine_up\{.*\} 0", re.MULTILINE)


class Program:
    """A command of twostroke that is started again where it was, as a supervisor would.

    Args:
        log: File for what it writes.
    """

    def __init__(self, log: Path, *arguments: str) -> None:
        self.log, self._arguments = log, arguments
        self.process = self._start()

    def kill_and_restart(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process = self._start()

    def pause(self, seconds: float) -> None:
        """Stop it for a while."""
        pause_process(self.process.pid, seconds)

    def end(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _start(self) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "twostroke", *self._arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )


@contextmanager
def behind_router(
    folder: Path, roles: Sequence[str], *flags: str
) -> Iterator[tuple[str, Program, list[tuple[Program, CuttingProxy]]]]:
    """A router's URL and process, and its workers, each with the proxy by which it is reached.

    Args:
        flags: Of the router.
    """
    with ExitStack() as stack:
        behind, named = [], []
        for number, role in enumerate(roles):
            address = Address("127.0.0.1", free_port())
            own = ["--kv-listen", f"127.0.0.1:{free_port()}"] if role == "prefill" else []
            arguments = ["worker", "pilot", "--role", role, "--listen", str(address), *own, *CACHE]
            program = Program(folder / f"worker-{number}.log", *arguments)
            stack.callback(program.end)
            proxy = CuttingProxy(address)
            stack.callback(proxy.close)
            behind.append((program, proxy))
            named.append(f"--worker={proxy.address}")
        apart = LONG_PROMPTS if "prefill" in roles else ()
        command = ("route", "pilot", *named, *STALL, *apart, *flags)
        url, program = stack.enter_context(running(folder, *command))
        wait_until(lambda: is_well(url))
        yield url, program, behind


@contextmanager
def running(folder: Path, *arguments: str) -> Iterator[tuple[str, Program]]:
    """A server that answers at a URL, and its process."""
    port = free_port()
    program = Program(folder / f"{arguments[0]}.log", *arguments, "--port", str(port))
    url = f"http://127.0.0.1:{port}"
    try:
        wait_until(lambda: answers(url), program)
        yield url, program
    finally:
        program.end()


def pause_process(pid: int, seconds: float) -> None:
    os.kill(pid, signal.SIGSTOP)
    time.sleep(seconds)
    with contextlib.suppress(ProcessLookupError):  # it was taken for hung, and ended
        os.kill(pid, signal.SIGCONT)


def hold_up(proxy: CuttingProxy, seconds: float) -> None:
    proxy.flows.clear()
    time.sleep(seconds)
    proxy.flows.set()


def is_there(pid: int) -> bool:
    """Whether a process runs, or has ended and is still listed."""
    return Path(f"/proc/{pid}").exists()


def answers(url: str) -> bool:
    """Whether a server is ready there."""
    try:
        return httpx.get(f"{url}/health", trust_env=False, timeout=60).status_code == 200
    except httpx.TransportError:
        return False


def is_well(url: str) -> bool:
    """Whether all engines of a server take requests."""
    try:
        metrics = httpx.get(f"{url}/metrics", trust_env=False, timeout=60)
    except httpx.TransportError:
        return False
    return answers(url) and metrics.status_code == 200 and not _NOT_UP.search(metrics.text)


def blocks_in_use(url: str) -> float:
    text = httpx.get(f"{url}/metrics", trust_env=False, timeout=60).text
    shares = re.findall(r"^vllm:kv_cache_usage_perc\{.*\} (\S+)$", text, re.MULTILINE)
    if not shares:
        raise ServerFailedError("no engine says how many blocks are in use")
    return sum(map(float, shares))


def wait_until(condition: Callable[[], bool], program: Program | None = None) -> None:
    """Poll a callable until it is true.

    Raises:
        ServerFailedError: The program has ended, or time is up.
    """
    deadline = time.monotonic() + START_SECONDS
    while not condition():
        if time.monotonic() > deadline or (program and program.process.poll() is not None):
            raise ServerFailedError("" if program is None else tail(program.log))
        time.sleep(0.05)
