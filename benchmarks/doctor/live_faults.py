"""Faults made on purpose, on a live server with pilot: flags, load, and what spoils it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import httpx

from twostroke.doctor.recordings import read_windows
from twostroke.doctor.window import RecordedSettings, StepWindow

BUSY = "while True: pass"
START_SECONDS = 60.0
KEYS = {"crowd": "sk-crowd-00000000000000000000", "guest": "sk-guest-00000000000000000000"}


@dataclass(frozen=True)
class Ask:
    """One request: when, how long, for whom; ``read_after``: seconds until it reads its answer."""

    time: float
    prompt: int
    output: int
    prefix: int = -1
    key: str = ""
    read_after: float = 0.0


@dataclass(frozen=True)
class LiveFault:
    """A server with a fault, and its load.

    Attributes:
        causes: Those that name it.
        kv_blocks: Blocks of its KV cache; 0 is the default.
        replicas: How many servers; the client sends to one after the other.
        stops: Whether the last of them is stopped half of the time.
        thieves: Other programs on the cores, in the middle of the run.
    """

    name: str
    causes: tuple[str, ...]
    flags: tuple[str, ...]
    load: tuple[Ask, ...]
    kv_blocks: int = 0
    replicas: int = 1
    stops: bool = False
    thieves: int = 0
    least_loaded: bool = False


def load(
    count: int, rate: float, prompt: int, output: int, *, seed: int = 1, begin: float = 0.0
) -> list[Ask]:
    """Requests at random times."""
    dice, now, asks = Random(seed), begin, []
    for _ in range(count):
        now += dice.expovariate(rate)
        size = max(1, round(prompt * dice.uniform(0.8, 1.2)))
        asks.append(Ask(now, size, max(2, round(output * dice.uniform(0.8, 1.2)))))
    return asks


def _mixed() -> list[Ask]:
    return sorted(
        [*load(40, 4.0, 30, 150), *load(9, 1.0, 1500, 5, seed=2, begin=1.0)],
        key=lambda ask: ask.time,
    )


def _hot() -> list[Ask]:
    crowd = [Ask(0.01 * number, 40, 60, key="crowd") for number in range(150)]
    guests = [Ask(0.4 + 0.25 * number, 40, 30, key="guest") for number in range(12)]
    return sorted([*crowd, *guests], key=lambda ask: ask.time)


def _prefixes() -> list[Ask]:
    dice, now, asks = Random(4), 0.0, []
    for number in range(70):
        now += dice.expovariate(4.0)
        asks.append(Ask(now, 840, 12, prefix=number % 14))
    return asks


DRAFTS = '{"method": "draft", "num_speculative_tokens": 6, "adaptive": false}'
LIVE_FAULTS: tuple[LiveFault, ...] = (
    LiveFault(
        "budget too small",
        ("token-budget",),
        ("--max-num-batched-tokens", "8", "--max-num-seqs", "8"),
        tuple(load(30, 2.0, 300, 30)),
    ),
    LiveFault(
        "chunk too large",
        ("long-prompts",),
        ("--max-num-batched-tokens", "8192"),
        tuple(_mixed()),
    ),
    LiveFault(
        "KV cache too small",
        ("kv-blocks", "preemption"),
        ("--max-model-len", "600"),
        tuple(load(50, 5.0, 200, 200)),
        kv_blocks=40,
    ),
    LiveFault(
        "noisy neighbour",
        ("long-prompts",),
        ("--max-num-batched-tokens", "8192", "--max-num-seqs", "32"),
        tuple(
            sorted(
                [*load(30, 3.0, 40, 200), *(Ask(1.0 + 2 * n, 1900, 2) for n in range(5))],
                key=lambda ask: ask.time,
            )
        ),
    ),
    LiveFault(
        "thrashing prefixes",
        ("eviction",),
        ("--max-model-len", "2048"),
        tuple(_prefixes()),
        kv_blocks=400,
    ),
    LiveFault(
        "speculation on random text",
        ("speculation",),
        ("--speculative-config", DRAFTS),
        tuple(load(40, 4.0, 60, 100)),
    ),
    LiveFault("CPU stolen", ("machine",), (), tuple(load(60, 5.0, 60, 120)), thieves=6),
    LiveFault(
        "slow reader",
        ("slow-client",),
        (),
        tuple(
            Ask(a.time, a.prompt, a.output, read_after=4.0 if n % 2 else 0.0)
            for n, a in enumerate(load(12, 2.0, 30, 1500))
        ),
    ),
    LiveFault(
        "one hot key", ("one-key",), ("--max-num-seqs", "8", "--policy", "fcfs"), tuple(_hot())
    ),
    LiveFault(
        "one slow replica",
        ("slow-replica",),
        (),
        tuple(load(60, 5.0, 150, 80)),
        replicas=2,
        stops=True,
    ),
    LiveFault(
        "too many sequences",
        ("batch-too-large",),
        ("--max-num-seqs", "256"),
        tuple(Ask(0.002 * n, 20, 80 + n % 40) for n in range(200)),
    ),
    LiveFault(
        "static batching",
        ("static-batching",),
        ("--batching", "static"),
        tuple(
            Ask(a.time, a.prompt, 400 if n % 8 == 0 else 8)
            for n, a in enumerate(load(60, 6.0, 40, 8))
        ),
    ),
    LiveFault(
        "too few sequences",
        ("max-num-seqs",),
        ("--max-num-seqs", "1"),
        tuple(load(40, 5.0, 40, 100)),
    ),
)


@dataclass
class LiveRun:
    """What a run left.

    Attributes:
        block_bytes: What a KV block takes.
    """

    windows: list[StepWindow]
    block_bytes: int = 0


@dataclass
class _Server:
    process: subprocess.Popen[bytes]
    url: str
    record: Path
    in_flight: int = field(default=0)


def run_live(fault: LiveFault, folder: Path, port: int, block_bytes: int) -> LiveRun:
    """Start the servers, send the load, and read what they recorded."""
    with _servers(fault, folder, port, block_bytes) as servers:
        shown = httpx.get(f"{servers[0].url}/v1/inspect", headers=_auth("crowd")).json()
        asyncio.run(_send_all(fault, servers))
        configuration = shown["configuration"]
    head = {"fleet": 1, "router": "round-robin", "recordings": [s.record.name for s in servers]}
    path = servers[0].record
    if len(servers) > 1:
        path = folder / "run.fleet.jsonl"
        path.write_text(json.dumps(head) + "\n")
    settings = RecordedSettings(
        max_num_seqs=configuration["max_num_seqs"],
        max_num_batched_tokens=configuration["max_num_batched_tokens"],
        policy=configuration["policy"],
    )
    size = int(configuration["kv_bytes_per_token"] * shown["block_size"])
    return LiveRun(read_windows(path, settings), size)


@contextmanager
def _servers(
    fault: LiveFault, folder: Path, port: int, block_bytes: int
) -> Iterator[list[_Server]]:
    servers = []
    try:
        for place in range(fault.replicas):
            record = folder / f"steps-{place}.jsonl"
            record.unlink(missing_ok=True)
            command = [sys.executable, "-m", "twostroke", "serve", "pilot"]
            command += ["--port", str(port + place), "--record", str(record), *fault.flags]
            if fault.kv_blocks:
                command += ["--kv-cache-memory", str(fault.kv_blocks * block_bytes)]
            if any(ask.key for ask in fault.load):
                for key in KEYS.values():
                    command += ["--api-key", key]
            process = subprocess.Popen(
                command, stdout=subprocess.DEVNULL, stderr=(folder / "log.txt").open("ab")
            )
            servers.append(_Server(process, f"http://127.0.0.1:{port + place}", record))
        for server in servers:
            _await_ready(server)
        yield servers
    finally:
        for server in servers:
            server.process.send_signal(signal.SIGCONT)
            server.process.terminate()
            server.process.wait()


def _await_ready(server: _Server) -> None:
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until:
        with suppress(httpx.HTTPError):
            if httpx.get(f"{server.url}/health").status_code == 200:
                return
        if server.process.poll() is not None:
            break
        time.sleep(0.1)
    raise RuntimeError(f"{server.url} did not start")


def _auth(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {KEYS[key]}"} if key else {}


async def _send_all(fault: LiveFault, servers: Sequence[_Server]) -> None:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(timeout=120, limits=limits) as http:
        await _send(http, servers[-1], Ask(0, 8, 2, key=fault.load[0].key), 999)
        began = time.monotonic()
        last = max(ask.time for ask in fault.load)
        spoilers = [asyncio.create_task(_spoil(fault, servers, last))]
        tasks = []
        for number, ask in enumerate(fault.load):
            await asyncio.sleep(max(0.0, began + ask.time - time.monotonic()))
            server = servers[number % len(servers)]
            if fault.least_loaded:
                server = min(servers, key=lambda each: each.in_flight)
            server.in_flight += 1
            tasks.append(asyncio.create_task(_send(http, server, ask, number)))
        await asyncio.gather(*tasks)
        for spoiler in spoilers:
            spoiler.cancel()
            with suppress(asyncio.CancelledError):
                await spoiler


async def _send(http: httpx.AsyncClient, server: _Server, ask: Ask, number: int) -> None:
    dice = Random(10_000 + number)
    tokens = [dice.randrange(10, 250) for _ in range(ask.prompt)]
    if ask.prefix >= 0:
        shared = Random(ask.prefix)
        tokens[:800] = [shared.randrange(10, 250) for _ in range(800)]
    body = {
        "model": "pilot",
        "prompt": tokens,
        "max_tokens": ask.output,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
    }
    url = f"{server.url}/v1/completions"
    try:
        async with http.stream("POST", url, json=body, headers=_auth(ask.key)) as answer:
            await asyncio.sleep(ask.read_after)
            async for _ in answer.aiter_raw():
                pass
    finally:
        server.in_flight -= 1


async def _spoil(fault: LiveFault, servers: Sequence[_Server], last: float) -> None:
    """Stop the last server half of the time; let others take the cores for a while."""
    thieves: list[subprocess.Popen[bytes]] = []
    try:
        if fault.thieves:
            await asyncio.sleep(0.55 * last)
            thieves = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(fault.thieves)]
            await asyncio.sleep(0.35 * last)
            return
        while fault.stops:
            os.kill(servers[-1].process.pid, signal.SIGSTOP)
            await asyncio.sleep(0.06)
            os.kill(servers[-1].process.pid, signal.SIGCONT)
            await asyncio.sleep(0.03)
    finally:
        for thief in thieves:
            thief.kill()
            thief.wait()
        if fault.stops:
            os.kill(servers[-1].process.pid, signal.SIGCONT)
