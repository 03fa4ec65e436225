"""What a router's core can do: its CPU time by request, token and message, and by engine.

    python -m benchmarks.failover.router_capacity

A router before two workers of the embedded model, each behind a proxy that counts the messages.
Only the router's own CPU time counts, so it matters little what else the machine does. A fit over
the loads divides it among requests, tokens and messages. Routing alone is timed for more engines
than one machine has. Writes benchmarks/results/router_capacity.json and .md.
"""

from __future__ import annotations

import asyncio
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import cyclopts
import numpy as np
import psutil

from benchmarks.environment import OtherPrograms, environment, environment_text, write_record
from benchmarks.failover.programs import behind_router
from tests.engine.workers.cutting_proxy import CuttingProxy
from tests.server.engines.many_streams import outcomes
from twostroke.engine.process.candidates import Candidates
from twostroke.engine.process.engine_process import EngineProcess
from twostroke.engine.process.frames import FrameCutter
from twostroke.routing.make_router import make_router
from twostroke.routing.routers import RoutedRequest

RESULTS = Path(__file__).parents[1] / "results"
# Streams at once, tokens of each, and how often.
LOADS = ((64, 1, 6), (64, 64, 2), (8, 64, 6), (1, 64, 8))
ENGINES = (2, 8, 32, 128, 512)
BODY = {"model": "pilot", "prompt": "The river", "ignore_eos": True, "temperature": 0}
IDLE_SECONDS = 5.0


@dataclass(slots=True)
class Traffic:
    """What has crossed between a router and its workers."""

    messages: int = 0
    replies: int = 0
    bytes: int = 0

    def watch(self, proxy: CuttingProxy) -> None:
        cutters = {True: FrameCutter(), False: FrameCutter()}

        def note(data: bytes, goes_there: bool) -> None:
            number = sum(1 for _ in cutters[goes_there].cut(data))
            self.bytes += len(data)
            if goes_there:
                self.messages += number
            else:
                self.replies += number

        proxy.on_data = note


@dataclass(frozen=True, slots=True)
class Row:
    """One load, and the router's CPU seconds for it."""

    at_once: int
    requests: int
    tokens: int
    messages: int
    replies: int
    bytes: int
    seconds: float

    @property
    def text(self) -> str:
        return (
            f"| {self.at_once} | {self.requests} | {self.tokens} | {self.messages}"
            f" | {self.replies} | {self.replies / self.tokens:.2f}"
            f" | {self.bytes / self.tokens:.0f} | {self.seconds:.2f}"
            f" | {1e6 * self.seconds / self.requests:.0f}"
            f" | {1e6 * self.seconds / self.tokens:.0f} |"
        )


def main(*, out: Path = RESULTS) -> None:
    """Measure and record."""
    other_programs, rows = OtherPrograms(), list[Row]()
    with (
        tempfile.TemporaryDirectory(prefix="twostroke-capacity-") as name,
        behind_router(Path(name), ("both", "both"), "--router", "least-loaded") as (
            url,
            router,
            behind,
        ),
    ):
        traffic = Traffic()
        process = psutil.Process(router.process.pid)
        measure(process, traffic, url, 8, 8, 2)  # connections and caches are warm then
        for _, proxy in behind:
            traffic.watch(proxy)
        for load in LOADS:
            rows.append(measure(process, traffic, url, *load))
            print(rows[-1].text, flush=True)
        idle = cpu_seconds(process)
        time.sleep(IDLE_SECONDS)
        idle = (cpu_seconds(process) - idle) / IDLE_SECONDS
    costs = fit(rows)
    routing = {
        router_name: {number: routing_seconds(router_name, number) for number in ENGINES}
        for router_name in ("least-loaded", "prefix-affinity")
    }
    lines = [
        "| at once | requests | tokens | sent | replies | a token | bytes | CPU s | us a request"
        " | a token |",
        "|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
        *(row.text for row in rows),
        "",
        f"Fitted: {1e6 * costs[0]:.0f} us a request, {1e6 * costs[1]:.0f} us a token,"
        f" {1e6 * costs[2]:.0f} us a reply; idle: {100 * idle:.1f}% of a core.",
        "Bytes are a token's.",
        "",
        f"| routing one request, us | {' | '.join(f'{number} engines' for number in ENGINES)} |",
        f"|---{'|--:' * len(ENGINES)}|",
        *(
            f"| {name} | {' | '.join(f'{1e6 * each:.0f}' for each in times.values())} |"
            for name, times in routing.items()
        ),
    ]
    print("\n".join(lines))
    command = shlex.join(["python", "-m", "benchmarks.failover.router_capacity", *sys.argv[1:]])
    where = environment(command, other_programs.share())
    record: dict[str, Any] = {
        "environment": where,
        "loads": [asdict(row) for row in rows],
        "fitted": dict(zip(("request", "token", "reply"), costs)),
        "idle_share": idle,
        "routing_seconds": routing,
    }
    text = environment_text(where) + "\n" + "\n".join(lines) + "\n"
    write_record(out / "router_capacity", "What a router's core can do", text, record)


def measure(
    process: psutil.Process, traffic: Traffic, url: str, at_once: int, tokens: int, times: int
) -> Row:
    before, seconds = Traffic(**asdict(traffic)), cpu_seconds(process)
    for _ in range(times):
        ended = asyncio.run(outcomes(url, {**BODY, "max_tokens": tokens}, at_once))
        if ended != {"whole": at_once}:
            raise RuntimeError(f"streams ended otherwise: {ended}")
    return Row(
        at_once,
        times * at_once,
        times * at_once * tokens,
        traffic.messages - before.messages,
        traffic.replies - before.replies,
        traffic.bytes - before.bytes,
        cpu_seconds(process) - seconds,
    )


def cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def fit(rows: list[Row]) -> list[float]:
    """Seconds by request, token and reply that come nearest to what was measured.

    Relative errors are weighed alike.
    """
    known = np.array([[row.requests, row.tokens, row.replies] for row in rows], dtype=float)
    seconds = np.array([row.seconds for row in rows])
    costs, *_ = np.linalg.lstsq(known / seconds[:, None], np.ones(len(rows)), rcond=None)
    return [float(each) for each in costs]


@dataclass(slots=True)
class Busy:
    """As much of an engine as routing looks at."""

    num_unfinished: int
    answered: bool = True


def routing_seconds(name: Any, num_engines: int, times: int = 300) -> float:
    """How long it takes to look at all engines and choose one."""
    engines: dict[int, Busy] = {index: Busy(index % 7) for index in range(num_engines)}
    candidates, router = Candidates(0.0), make_router(name)
    requests = [RoutedRequest(1000, ((number % 50, 900),)) for number in range(times)]

    def route(request: RoutedRequest) -> None:
        running = {index: engine for index, engine in engines.items() if engine.answered}
        router.route(request, candidates.loads(cast(Mapping[int, EngineProcess], running)))

    return per_call([partial(route, request) for request in requests])


def per_call(calls: list[Callable[[], None]]) -> float:
    """Mean CPU seconds."""
    began = time.process_time()
    for call in calls:
        call()
    return (time.process_time() - began) / len(calls)


if __name__ == "__main__":
    cyclopts.run(main)
