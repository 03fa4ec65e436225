"""Routers on conversations: live with two workers, simulated with sixteen replicas.

    python -m benchmarks.pools.sessions

Each turn's prompt holds all turns before it, so a replica that had the turn before has most of it
cached. Live: the embedded model behind ``twostroke route``; users talk at the same time, each
session after session, and routers take turns. Writes benchmarks/results/router_sessions.json and
.md.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import shlex
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, get_args

import cyclopts
import httpx

from benchmarks.environment import OtherPrograms, environment, environment_text, write_record
from benchmarks.failover.programs import behind_router
from twostroke.routing.routers import RouterName
from twostroke.simulator.deployment.options import DeploymentOptions
from twostroke.simulator.scenario import Scenario
from twostroke.simulator.simulate import simulate
from twostroke.simulator.workloads.options import SimulatedWorkloadOptions

RESULTS = Path(__file__).parents[1] / "results"
LIVE: tuple[RouterName, ...] = ("round-robin", "prefix-affinity")
REPLICAS, RATE = 16, 120.0
MODEL, GPU = "llama-3.1-8b", "h100"
WORDS = [
    "block",
    "cache",
    "engine",
    "prompt",
    "queue",
    "router",
    "step",
    "table",
    "token",
    "worker",
    "batch",
    "prefix",
]
COUNTED = r"^vllm:prefix_cache_{}_total\{{.*\}} (\S+)$"


@dataclass(slots=True)
class Live:
    """What users of one router saw.

    Attributes:
        first_tokens: Seconds to the first token of each turn but a session's first.
        cached, looked_up: Prompt tokens.
    """

    first_tokens: list[float] = field(default_factory=list)
    cached: float = 0.0
    looked_up: float = 0.0


def main(
    *,
    sessions: int = 8,
    users: int = 5,
    turns: int = 5,
    question: int = 150,
    answer: int = 24,
    rounds: int = 2,
    requests: int = 8000,
    out: Path = RESULTS,
) -> None:
    """Measure and record.

    Args:
        sessions: Live: of each user, in each round.
        users: Live: how many talk at the same time.
        turns: Live: of a session.
        question: Live: words of each.
        answer: Live: tokens of each.
        rounds: Live: how often each router is measured.
        requests: Simulated: of each run.
    """
    other_programs = OtherPrograms()
    live = {router: Live() for router in LIVE}
    with tempfile.TemporaryDirectory(prefix="twostroke-sessions-") as name:
        for number in range(rounds):
            for router, seen in live.items():
                folder = Path(name, f"{number}-{router}")
                folder.mkdir()
                with behind_router(folder, ("both", "both"), "--router", router) as (url, _, _):
                    asyncio.run(talk(url, seen, number, sessions, users, turns, question, answer))
    lines = [
        "| router, live, 2 workers | turns | hits | TTFT P50, ms | P95, ms |",
        "|---|--:|--:|--:|--:|",
    ]
    for router, seen in live.items():
        tenths = statistics.quantiles(seen.first_tokens, n=20)
        lines.append(
            f"| {router} | {len(seen.first_tokens)} | {seen.cached / seen.looked_up:.0%}"
            f" | {1e3 * statistics.median(seen.first_tokens):.1f} | {1e3 * tenths[-1]:.1f} |"
        )
    simulated = {router: simulated_row(router, requests) for router in get_args(RouterName)}
    lines += [
        "",
        f"Simulated: {REPLICAS} replicas of {MODEL} on {GPU}; {requests:,} requests, {RATE:g} a"
        " second,",
        "in sessions of 8 turns with 500 tokens of question and 200 of answer, 10 s apart.",
        "",
        f"| router, simulated, {REPLICAS} replicas | hits | TTFT P50, ms | P95, ms |",
        "|---|--:|--:|--:|",
        *(
            f"| {router} | {row['hits']:.0%} | {1e3 * row['ttft_p50']:.1f}"
            f" | {1e3 * row['ttft_p95']:.1f} |"
            for router, row in simulated.items()
        ),
    ]
    print("\n".join(lines))
    command = shlex.join(["python", "-m", "benchmarks.pools.sessions", *sys.argv[1:]])
    where = environment(command, other_programs.share())
    record: dict[str, Any] = {
        "environment": where,
        "live": {router: asdict(seen) for router, seen in live.items()},
        "simulated": simulated,
    }
    text = (
        f"{environment_text(where)}\nLive: {users} users, {rounds} rounds of {sessions} sessions of"
        f" each, {turns} turns with {question} words\nof question and {answer} tokens of answer;"
        " first tokens of all turns but a session's first.\n\n"
    )
    title = "Routers on conversations"
    write_record(out / "router_sessions", title, text + "\n".join(lines) + "\n", record)


async def talk(
    url: str,
    seen: Live,
    round_number: int,
    sessions: int,
    users: int,
    turns: int,
    question: int,
    answer: int,
) -> None:
    """Have all users talk, and add what the workers say of their caches."""

    async def user(client: httpx.AsyncClient, number: int) -> None:
        for session in range(sessions):
            drawn = random.Random(f"{round_number} {number} {session}")
            messages: list[dict[str, str]] = []
            for turn in range(turns):
                text = " ".join(drawn.choices(WORDS, k=question))
                messages.append({"role": "user", "content": text})
                seconds, said = await ask(client, messages, answer)
                messages.append({"role": "assistant", "content": said})
                if turn:
                    seen.first_tokens.append(seconds)

    async with httpx.AsyncClient(base_url=url, timeout=120, trust_env=False) as client:
        before = await counted(client)
        await asyncio.gather(*(user(client, number) for number in range(users)))
        after = await counted(client)
    seen.cached += after["hits"] - before["hits"]
    seen.looked_up += after["queries"] - before["queries"]


async def ask(
    client: httpx.AsyncClient, messages: list[dict[str, str]], max_tokens: int
) -> tuple[float, str]:
    """Seconds to the first token of an answer, and the answer."""
    body = {"model": "pilot", "messages": messages, "max_tokens": max_tokens, "ignore_eos": True}
    body |= {"temperature": 0, "stream": True}
    began, seconds, said = time.perf_counter(), 0.0, ""
    async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        if answer.status_code != 200:
            raise RuntimeError((await answer.aread()).decode())
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                for choice in json.loads(line[6:])["choices"]:
                    said += choice["delta"].get("content") or ""
                seconds = seconds or (time.perf_counter() - began if said else 0.0)
    return seconds, said


async def counted(client: httpx.AsyncClient) -> dict[str, float]:
    """Prompt tokens that were looked up, and those that were cached, of all workers."""
    text = (await client.get("/metrics")).text
    return {
        name: sum(map(float, re.findall(COUNTED.format(name), text, re.MULTILINE)))
        for name in ("queries", "hits")
    }


def simulated_row(router: RouterName, requests: int) -> dict[str, float]:
    scenario = Scenario(
        deployment=DeploymentOptions(model=MODEL, gpu=GPU, replicas=REPLICAS, router=router),
        workload=SimulatedWorkloadOptions(
            workload="sessions",
            num_requests=requests,
            rate=RATE,
            turns=8,
            input_len=500,
            output_len=200,
            think_time=10.0,
        ),
    )
    summary = simulate(scenario).summary
    ttft = summary.latencies["ttft"].percentiles
    return {"hits": summary.prefix_hit_rate, "ttft_p50": ttft[50], "ttft_p95": ttft[95]}


if __name__ == "__main__":
    cyclopts.run(main)
