"""Ends engines of a fleet at random while many streams run: is every answer the right one?

    python -m benchmarks.failover.random_kills [--streams 1000] [--kills 200]

Engines of the embedded model on one machine: two that answer, one for prompts, or with ``--ranks``
one that is two tensor-parallel ranks. A process among them (an engine or a rank) gets SIGKILL, or
SIGSTOP, again and again, whenever all are there; streams of several kinds run meanwhile, so many at
once. Each stream is compared with the same call on a server that nothing disturbs. Linux only.
Writes benchmarks/results/random_kills.json and .md.
"""

from __future__ import annotations

import asyncio
import os
import random
import shlex
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import cyclopts
import httpx

from benchmarks.environment import OtherPrograms, environment, environment_text, write_record
from benchmarks.server import ServerProcess, running_server
from tests.server.engines.processes import started_by
from tests.server.engines.streamed_calls import chat_calls
from tests.server.engines.streamed_content import content_of

RESULTS = Path(__file__).parents[1] / "results"
CACHE = ("--kv-cache-memory", "96MiB", "--stall-timeout", "3")
FLEET = ("--data-parallel-size", "3", "--prefill-engines", "1", "--prefill-min-tokens", "24")
REFUSED = ".refused"  # as content_of names what stream() writes
RANKS = ("--tensor-parallel-size", "2")
LONG = "Prefill reads the whole prompt at once, and decode writes one token per pass. " * 4
CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    **{kind: ("chat/completions", body) for kind, body in chat_calls(max_tokens=60).items()},
    "n = 3": ("completions", {"prompt": LONG, "n": 3, "max_tokens": 40, "logprobs": 1}),
    "long prompt": ("completions", {"prompt": LONG, "max_tokens": 80, "ignore_eos": True}),
}


def main(
    *,
    streams: int = 1000,
    kills: int = 200,
    at_once: int = 12,
    seeds: int = 6,
    stops: float = 0.1,
    ranks: bool = False,
    out: Path = RESULTS,
) -> None:
    """Measure and record.

    Args:
        streams: How many at least; they go on until all kills are done.
        kills: How many.
        at_once: Streams that run at the same time.
        seeds: How many different answers of each kind are asked for.
        stops: Share of the signals that are SIGSTOP.
        ranks: Disturb one engine of two ranks.
        out: Folder for the record.
    """
    other_programs = OtherPrograms()
    drawn = random.Random(7)
    with tempfile.TemporaryDirectory(prefix="twostroke-kills-") as folder:
        flags = RANKS if ranks else FLEET
        alone = RANKS if ranks else ()  # ranks round sums in another order than one process
        with running_server("pilot", Path(folder, "calm.log"), *CACHE, *alone) as calm:
            expected = asyncio.run(undisturbed(calm.url, seeds))
        log = Path(folder, "fleet.log")
        with running_server("pilot", log, *CACHE, *flags) as server:
            asked = {"streams": streams, "kills": kills, "at_once": at_once}
            results, seconds = asyncio.run(disturb(server, expected, drawn, stops, **asked))
            leaked = leaked_blocks(server.url)
    outcomes = Counter(outcome for _, outcome in results)
    lines = [
        "| streams | the same bytes | refused | ended by a named error | anything else |",
        "|--:|--:|--:|--:|--:|",
        f"| {len(results)} | {outcomes['same']} | {outcomes['refused']} | {outcomes['error']}"
        f" | {outcomes['other']} |",
        "",
        f"{len(seconds)} signals; until all engines were there again: median"
        f" {statistics.median(seconds):.1f} s, longest {max(seconds):.1f} s.",
        f"KV blocks in use at the end: {leaked}.",
    ]
    print("\n".join(lines))
    command = shlex.join(["python", "-m", "benchmarks.failover.random_kills", *sys.argv[1:]])
    where = environment(command, other_programs.share())
    text = environment_text(where) + "\n" + "\n".join(lines) + "\n"
    record: dict[str, Any] = {
        "environment": where,
        "outcomes": dict(outcomes),
        "by_kind": {f"{kind}, {what}": n for (kind, what), n in Counter(results).items()},
        "seconds_until_back": seconds,
    }
    name = "random_kills_ranks" if ranks else "random_kills"
    write_record(out / name, "Engines killed at random", text, record)


async def undisturbed(url: str, seeds: int) -> dict[tuple[str, int], dict[str, str]]:
    """What each call says on a server that nothing disturbs."""
    async with httpx.AsyncClient(base_url=url, timeout=120, trust_env=False) as client:
        return {
            (kind, seed): content_of(await stream(client, kind, seed))
            for kind in CALLS
            for seed in range(seeds)
        }


async def disturb(
    server: ServerProcess,
    expected: dict[tuple[str, int], dict[str, str]],
    drawn: random.Random,
    stops: float,
    *,
    streams: int,
    kills: int,
    at_once: int,
) -> tuple[list[tuple[str, str]], list[float]]:
    """Kind and outcome of each stream, and how long each signal's engine was away."""
    results: list[tuple[str, str]] = []
    seconds: list[float] = []
    over = asyncio.Event()

    async def ask(client: httpx.AsyncClient) -> None:
        while not over.is_set() or len(results) < streams:
            kind, seed = drawn.choice(list(expected))
            try:
                said = content_of(await stream(client, kind, seed))
            except httpx.HTTPError as error:
                results.append((kind, f"other: {type(error).__name__}"))
                continue
            outcome = "same" if said == expected[kind, seed] else "other"
            if REFUSED in said:
                outcome = "refused"
                await asyncio.sleep(1.0)  # as a client would; else refusals outnumber the rest
            elif any(".error" in key for key in said):
                outcome = "error"
            results.append((kind, outcome))
            print(f"{len(results)} streams, {len(seconds)} signals", end="\r", file=sys.stderr)

    async with httpx.AsyncClient(
        base_url=server.url,
        timeout=120,
        trust_env=False,
        limits=httpx.Limits(max_connections=at_once + 2),
    ) as client:
        asking = [asyncio.create_task(ask(client)) for _ in range(at_once)]
        wanted = len(processes_of(server))
        for _ in range(kills):
            await asyncio.sleep(drawn.random())
            began = time.monotonic()
            victim = drawn.choice(processes_of(server))
            os.kill(victim, signal.SIGSTOP if drawn.random() < stops else signal.SIGKILL)
            while Path(f"/proc/{victim}").exists() or len(processes_of(server)) < wanted:
                await asyncio.sleep(0.05)
            while (await client.get("/health")).status_code != 200:
                await asyncio.sleep(0.05)
            seconds.append(time.monotonic() - began)
        over.set()
        await asyncio.gather(*asking)
    return [(kind, what.partition(":")[0]) for kind, what in results], seconds


async def stream(client: httpx.AsyncClient, kind: str, seed: int) -> list[str]:
    """The events of a call; a refusal is one event with its status."""
    route, body = CALLS[kind]
    body = {"model": "pilot", "seed": seed, "temperature": 0.9, "stream": True, **body}
    async with client.stream("POST", f"/v1/{route}", json=body) as answer:
        if answer.status_code != 200:
            text = (await answer.aread()).decode()
            return [f'data: {{"refused": {answer.status_code}, "error": {text}}}']
        return [line async for line in answer.aiter_lines() if line.startswith("data")]


def processes_of(server: ServerProcess) -> list[int]:
    """The engines' processes, and those of their ranks."""
    engines = started_by(server.process.pid, "engine_process")
    ranks = [rank for engine in engines for rank in started_by(engine, "ranks.follow")]
    return sorted([*engines, *ranks])


def leaked_blocks(url: str) -> float:
    """The share of KV blocks that requests hold, when none is left."""
    time.sleep(1.0)
    lines = httpx.get(f"{url}/metrics", trust_env=False).text.splitlines()
    shares = [line for line in lines if line.startswith("vllm:kv_cache_usage_perc")]
    return sum(float(line.rsplit(maxsplit=1)[1]) for line in shares)


if __name__ == "__main__":
    cyclopts.run(main)
