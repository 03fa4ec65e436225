"""Faults made on purpose, on a live server with pilot: flags, load, and what spoils it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from random import Random

import httpx

from twostroke.doctor.imbalance import ALIKE, RouterFacts
from twostroke.doctor.live import KEY_VARIABLE, LiveServer
from twostroke.doctor.recordings import read_windows
from twostroke.doctor.window import RecordedSettings, StepWindow

BUSY = "while True: pass"
START_SECONDS = 180.0
KEYS = {name: f"sk-{name}-00000000000000000000" for name in ("crowd", "guest", "admin")}


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
        over_http: Whether the running server is asked, as ``twostroke doctor URL`` does; else what
            it has recorded is read.
        stops: Whether the last of its engines is stopped half of the time.
        thieves: Other programs on the cores, in the middle of the run.
    """

    name: str
    causes: tuple[str, ...]
    flags: tuple[str, ...]
    load: tuple[Ask, ...]
    kv_blocks: int = 0
    over_http: bool = False
    stops: bool = False
    thieves: int = 0


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


TWO = ("--data-parallel-size", "2")
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
            Ask(a.time, a.prompt, a.output, read_after=25.0 if n % 2 else 0.0)
            for n, a in enumerate(load(12, 0.6, 30, 1500))
        ),
    ),
    LiveFault(
        "one hot key", ("one-key",), ("--max-num-seqs", "8", "--policy", "fcfs"), tuple(_hot())
    ),
    LiveFault(
        "one slow replica",
        ("slow-replica",),
        (*TWO, "--router", "round-robin"),
        tuple(load(60, 4.0, 150, 80)),
        over_http=True,
        stops=True,
    ),
    LiveFault(
        "long requests to one replica",
        ("imbalance",),
        (*TWO, "--router", "round-robin", "--max-num-seqs", "4"),
        tuple(
            Ask(a.time, a.prompt, 240 if n % 2 else 8) for n, a in enumerate(load(60, 6.0, 40, 8))
        ),
        over_http=True,
    ),
    LiveFault(
        "one hot prefix",
        ("imbalance",),
        (*TWO, "--router", "prefix-affinity", "--max-num-seqs", "1"),
        tuple(Ask(a.time, 840, 24, prefix=1) for a in load(50, 2.0, 1, 1)),
        over_http=True,
    ),
    LiveFault(
        "too few engines for prompts",
        ("pool-ratio",),
        ("--data-parallel-size", "2", "--prefill-engines", "1", "--prefill-min-tokens", "64"),
        tuple(load(60, 6.0, 1500, 4)),
        over_http=True,
    ),
    LiveFault(
        "rate limits",
        ("rate-limits",),
        ("--requests-per-minute", "20"),
        tuple(Ask(a.time, a.prompt, a.output, key="crowd") for a in load(60, 6.0, 40, 20)),
        over_http=True,
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
    fleet: RouterFacts = ALIKE


@dataclass
class _Server:
    process: subprocess.Popen[bytes]
    url: str
    record: Path

    def engines(self) -> list[int]:
        """The processes of its engines, in the order in which they were started."""
        pid = self.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        commands = {int(child): Path(f"/proc/{child}/cmdline").read_bytes() for child in children}
        return sorted(child for child, words in commands.items() if b"engine_process" in words)


def run_live(fault: LiveFault, folder: Path, port: int, block_bytes: int) -> LiveRun:
    """Start the server, send the load, and read what it recorded, or what it says."""
    with _serving(fault, folder, port, block_bytes) as server:
        shown = httpx.get(f"{server.url}/v1/inspect", headers=_auth("crowd")).json()
        asyncio.run(_send_all(fault, server))
        configuration = shown["configuration"]
        size = int(configuration["kv_bytes_per_token"] * shown["block_size"])
        if fault.over_http:
            os.environ[KEY_VARIABLE] = KEYS["admin"]
            with LiveServer(server.url) as live:
                windows, fleet = live.windows(None)
            return LiveRun(windows, size, fleet)
    settings = RecordedSettings(
        max_num_seqs=configuration["max_num_seqs"],
        max_num_batched_tokens=configuration["max_num_batched_tokens"],
        policy=configuration["policy"],
    )
    return LiveRun(read_windows(server.record, settings), size)


@contextmanager
def _serving(fault: LiveFault, folder: Path, port: int, block_bytes: int) -> Iterator[_Server]:
    record = folder / "steps.jsonl"
    record.unlink(missing_ok=True)
    command = [sys.executable, "-m", "twostroke", "serve", "pilot", "--port", str(port)]
    command += ["--step-events", "32768", *fault.flags]
    if not fault.over_http:
        command += ["--record", str(record)]
    if fault.kv_blocks:
        command += ["--kv-cache-memory", str(fault.kv_blocks * block_bytes)]
    if any(ask.key for ask in fault.load):
        keys = folder / "keys"
        keys.write_text("".join(f"{_line(name)}\n" for name in KEYS))
        command += ["--api-key-file", str(keys)]
    with (folder / "log.txt").open("ab") as log:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log)
    server = _Server(process, f"http://127.0.0.1:{port}", record)
    try:
        _await_ready(server)
        yield server
    finally:
        process.terminate()
        process.wait()


def _line(name: str) -> str:
    """A key as a file of keys has it; that of the doctor sees all requests."""
    digest = sha256(KEYS[name].encode()).hexdigest()
    return f"{name}:{digest}{':admin' if name == 'admin' else ''}"


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


async def _send_all(fault: LiveFault, server: _Server) -> None:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(timeout=120, limits=limits) as http:
        await _send(http, server, Ask(0, 8, 2, key="admin" if fault.load[0].key else ""), 999)
        began = time.monotonic()
        last = max(ask.time for ask in fault.load)
        spoiler = asyncio.create_task(_spoil(fault, server, last))
        tasks = []
        for number, ask in enumerate(fault.load):
            await asyncio.sleep(max(0.0, began + ask.time - time.monotonic()))
            tasks.append(asyncio.create_task(_send(http, server, ask, number)))
        await asyncio.gather(*tasks)
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
    async with http.stream("POST", url, json=body, headers=_auth(ask.key)) as answer:
        await asyncio.sleep(ask.read_after)
        async for _ in answer.aiter_raw():
            pass


async def _spoil(fault: LiveFault, server: _Server, last: float) -> None:
    """Stop its last engine half of the time; let others take the cores for a while."""
    stopped = server.engines()[-1] if fault.stops else 0
    thieves: list[subprocess.Popen[bytes]] = []
    try:
        if fault.thieves:
            await asyncio.sleep(0.55 * last)
            thieves = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(fault.thieves)]
            await asyncio.sleep(0.35 * last)
            return
        while fault.stops:
            os.kill(stopped, signal.SIGSTOP)
            await asyncio.sleep(0.06)
            os.kill(stopped, signal.SIGCONT)
            await asyncio.sleep(0.03)
    finally:
        for thief in thieves:
            thief.kill()
            thief.wait()
        if fault.stops:
            os.kill(stopped, signal.SIGCONT)
