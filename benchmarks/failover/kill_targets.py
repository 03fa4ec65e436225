"""What ``random_kills`` disturbs: engines, ranks, workers, a router, Redis, or Ray's replicas.

Each target is a server of the embedded model. Its strikes are drawn by weight:

- *kill*: SIGKILL; what nothing else would start again is started at once;
- *stop*: SIGSTOP for longer than the stall timeout, after which it is left, or ended;
- *pause*: SIGSTOP, and SIGCONT before anything has to notice;
- *cut*: all TCP connections to it end;
- *full*: nothing is read from its connections for a while, so that sockets get full.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

import httpx

from benchmarks.server import DEADLINE, STOP_SECONDS, ServerFailedError, free_port, tail
from tests.engine.workers.cutting_proxy import CuttingProxy
from tests.gateway.redis_servers import RealRedis
from tests.server.engines.processes import started_by
from twostroke.core.network.address import Address

STALL_SECONDS = 3.0
LEFT_SECONDS = STALL_SECONDS + 1.5  # until whoever waits has noticed
CACHE = ("--kv-cache-memory", "96MiB")
STALL = ("--stall-timeout", f"{STALL_SECONDS:g}")
LONG_PROMPTS = ("--prefill-min-tokens", "24")
ENGINES = ("--data-parallel-size", "3", "--prefill-engines", "1", *LONG_PROMPTS)
RANKS = ("--tensor-parallel-size", "2")
FLEET = """
[server]
stall-timeout = {stall:g}

[pools.pilot]
model = "pilot"
replicas = 2
kv-cache-memory = "96MiB"
"""
LIMITS = ("--requests-per-minute", "1000000", "--tokens-per-minute", "1000000000")
_NOT_UP = re.compile(r"^twostroke:engine_up\{.*\} 0", re.MULTILINE)


class Target(Protocol):
    """A server, and what may be struck in it, behind it or before it.

    Attributes:
        url: Where clients ask.
        strikes: By name, how often each is drawn.
    """

    url: str
    strikes: Mapping[str, float]

    def strike(self, how: str, drawn: random.Random) -> None:
        """Do it; returns once what was struck is there again, or another starts it."""

    def is_back(self) -> bool:
        """Whether all is as it was before."""

    def blocks_in_use(self) -> float:
        """The share of KV blocks that requests hold, of all engines together."""


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


class Processes:
    """Implements ``Target`` for processes that something starts again.

    Args:
        find: The ids of those that are there.
    """

    strikes: Mapping[str, float] = {"kill": 0.6, "pause": 0.3, "stop": 0.1}

    def __init__(self, url: str, find: Callable[[], list[int]]) -> None:
        self.url, self._find = url, find
        self._wanted = len(find())

    def strike(self, how: str, drawn: random.Random) -> None:
        victim = drawn.choice(self._find())
        if how == "pause":
            pause_process(victim, drawn.uniform(0.1, 0.5 * STALL_SECONDS))
            return
        os.kill(victim, signal.SIGKILL if how == "kill" else signal.SIGSTOP)
        wait_until(lambda: not is_there(victim))

    def is_back(self) -> bool:
        return len(self._find()) >= self._wanted and is_well(self.url)

    def blocks_in_use(self) -> float:
        return blocks_in_use(self.url)


class Workers:
    """Implements ``Target`` for workers behind a router, each with a proxy before it."""

    strikes: Mapping[str, float] = {
        "kill": 0.3,
        "pause": 0.2,
        "stop": 0.05,
        "cut": 0.3,
        "full": 0.1,
    }

    def __init__(self, url: str, workers: list[tuple[Program, CuttingProxy]]) -> None:
        self.url, self._workers = url, workers

    def strike(self, how: str, drawn: random.Random) -> None:
        worker, proxy = drawn.choice(self._workers)
        match how:
            case "kill":
                worker.kill_and_restart()
            case "pause":
                worker.pause(drawn.uniform(0.1, 0.5 * STALL_SECONDS))
            case "stop":
                worker.pause(LEFT_SECONDS)
            case "cut":
                proxy.cut()
            case _:
                hold_up(proxy, drawn.choice((0.5, LEFT_SECONDS)))

    def is_back(self) -> bool:
        return is_well(self.url)

    def blocks_in_use(self) -> float:
        return blocks_in_use(self.url)


class RouterItself:
    """Implements ``Target`` for a router: what happens to it, happens to all its clients."""

    strikes: Mapping[str, float] = {"kill": 0.4, "pause": 0.2, "cut": 0.3, "full": 0.1}

    def __init__(self, inner_url: str, router: Program, proxy: CuttingProxy) -> None:
        self.url, self._inner_url = f"http://{proxy.address}", inner_url
        self._router, self._proxy = router, proxy

    def strike(self, how: str, drawn: random.Random) -> None:
        match how:
            case "kill":
                self._router.kill_and_restart()
            case "pause":
                self._router.pause(drawn.uniform(0.1, LEFT_SECONDS))
            case "cut":
                self._proxy.cut()
            case _:
                hold_up(self._proxy, drawn.uniform(0.5, LEFT_SECONDS))

    def is_back(self) -> bool:
        return is_well(self._inner_url)

    def blocks_in_use(self) -> float:
        return blocks_in_use(self._inner_url)


class LimitsInRedis:
    """Implements ``Target`` for the Redis that a server keeps its limits in."""

    strikes: Mapping[str, float] = {"kill": 0.3, "pause": 0.3, "cut": 0.3, "full": 0.1}

    def __init__(self, url: str, storage: RealRedis, proxy: CuttingProxy) -> None:
        self.url, self._storage, self._proxy = url, storage, proxy

    def strike(self, how: str, drawn: random.Random) -> None:
        match how:
            case "kill":
                self._storage.kill()
                time.sleep(drawn.random())
                self._storage.restart()
            case "pause":
                self._storage.stall()
                time.sleep(drawn.uniform(0.1, LEFT_SECONDS))
                self._storage.resume()
            case "cut":
                self._proxy.cut()
            case _:
                hold_up(self._proxy, drawn.uniform(0.5, LEFT_SECONDS))

    def is_back(self) -> bool:
        body = {"model": "pilot", "prompt": "a", "max_tokens": 1}
        answer = httpx.post(f"{self.url}/v1/completions", json=body, trust_env=False, timeout=60)
        return answer.status_code == 200

    def blocks_in_use(self) -> float:
        return blocks_in_use(self.url)


# ---- the targets, each started on free ports of loopback -----------------------------------------


@contextmanager
def served(folder: Path, *flags: str) -> Iterator[str]:
    """The URL of ``twostroke serve`` with these flags."""
    with running(folder, "serve", "pilot", *CACHE, *STALL, *flags) as (url, _):
        yield url


@contextmanager
def engines(folder: Path, *flags: str) -> Iterator[Target]:
    """Three engines of one server, one of them for prompts, or others by flags."""
    arguments = ("serve", "pilot", *CACHE, *STALL, *(flags or ENGINES))
    with running(folder, *arguments) as (url, program):

        def find() -> list[int]:
            engines = started_by(program.process.pid, "engine_process")
            ranks = [rank for engine in engines for rank in started_by(engine, "ranks.follow")]
            return sorted([*engines, *ranks])

        wait_until(lambda: is_well(url))
        yield Processes(url, find)


@contextmanager
def ranks(folder: Path) -> Iterator[Target]:
    """Two engines of one server, each of two tensor-parallel ranks."""
    with engines(folder, *RANKS, "--data-parallel-size", "2") as target:
        yield target


@contextmanager
def workers(folder: Path) -> Iterator[Target]:
    """A worker of role prefill and one of role decode."""
    with behind_router(folder, ("prefill", "decode")) as (url, _, behind):
        yield Workers(url, behind)


@contextmanager
def router(folder: Path) -> Iterator[Target]:
    """A router before two workers; clients come through a proxy."""
    with ExitStack() as stack:
        url, program, _ = stack.enter_context(behind_router(folder, ("both", "both")))
        proxy = CuttingProxy(Address.parse(url.removeprefix("http://")))
        stack.callback(proxy.close)
        yield RouterItself(url, program, proxy)


@contextmanager
def limits_in_redis(folder: Path) -> Iterator[Target]:
    """A server that keeps its limits in a real Redis; a proxy between the two."""
    storage = RealRedis(folder)
    proxy = CuttingProxy(Address("127.0.0.1", storage.port))
    try:
        with served(folder, *LIMITS, "--rate-limit-storage", f"redis://{proxy.address}/0") as url:
            yield LimitsInRedis(url, storage, proxy)
    finally:
        proxy.close()
        storage.kill()


@contextmanager
def ray_replicas(folder: Path) -> Iterator[Target]:
    """Two replicas that Ray places on this machine."""
    path = folder / "fleet.toml"
    path.write_text(FLEET.format(stall=STALL_SECONDS))
    with running(folder, "up", "--ray", "local", "--config", str(path)) as (url, program):

        def find() -> list[int]:
            states = [line for line in program.log.read_text().splitlines() if " ready; " in line]
            return [
                pid for pid in map(int, re.findall(r"process (\d+)", states[-1])) if is_there(pid)
            ]

        wait_until(lambda: is_well(url))
        yield Processes(url, find)


TARGETS = {
    "engines": engines,
    "ranks": ranks,
    "workers": workers,
    "router": router,
    "redis": limits_in_redis,
    "ray": ray_replicas,
}


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
    deadline = time.monotonic() + DEADLINE
    while not condition():
        if time.monotonic() > deadline or (program and program.process.poll() is not None):
            raise ServerFailedError("" if program is None else tail(program.log))
        time.sleep(0.05)
