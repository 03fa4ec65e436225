"""What ``random_kills`` disturbs: engines, ranks, workers, a router, Redis, or Ray's replicas.

Each target is a server of the embedded model. Its strikes are drawn by weight:

- *kill*: SIGKILL; what nothing else would start again is started at once;
- *stop*: SIGSTOP for longer than the stall timeout, after which it is left, or ended;
- *pause*: SIGSTOP, and SIGCONT before anything has to notice;
- *cut*: all TCP connections to it end;
- *full*: nothing is read from its connections for a while, so that sockets get full.
"""

from __future__ import annotations

import os
import random
import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

import httpx

from benchmarks.failover.programs import (
    CACHE,
    LEFT_SECONDS,
    LONG_PROMPTS,
    STALL,
    STALL_SECONDS,
    Program,
    behind_router,
    blocks_in_use,
    hold_up,
    is_there,
    is_well,
    pause_process,
    running,
    wait_until,
)
from tests.engine.workers.cutting_proxy import CuttingProxy
from tests.gateway.redis_servers import RealRedis
from tests.server.engines.processes import started_by
from twostroke.core.network.address import Address

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
