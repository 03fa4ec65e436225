"""How long readers of answers wait while long prompts arrive: computed in chunks, or apart.

    python -m benchmarks.failover.prefill_apart MODEL [--prompt-tokens 8000]

Two engines on the same cores: both do everything, both in small chunks, or one computes prompts and
the other answers (``--prefill-engines 1``); then two workers behind a router, of role both, or one
of role prefill and one of role decode, between which blocks cross over TCP. A few streams read long
answers; meanwhile long prompts come one after the other, each as soon as the one before has its
second token. The ways take turns. Writes benchmarks/results/prefill_apart.json and .md, or those of
prefill_apart_workers.
"""

from __future__ import annotations

import asyncio
import json
import random
import shlex
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cyclopts
import httpx

from benchmarks.environment import OtherPrograms, environment, environment_text, write_record
from benchmarks.server import running_server, running_workers

RESULTS = Path(__file__).parents[1] / "results"
WAYS = {
    "both do everything": (),
    "both, chunks of 128": ("--max-prefill-chunk", "128"),
    "one for prompts": ("--prefill-engines", "1", "--prefill-min-tokens", "512"),
}
ROLES = {
    "workers, both": ("both", "both"),
    "workers, prefill and decode": ("prefill", "decode"),
}
# Of each short prompt, and before the first long one.
ANSWER_TOKENS, LEAD_SECONDS = 400, 3.0


@dataclass(slots=True)
class Seen:
    """What clients saw in one way.

    Attributes:
        gaps: Seconds between two events of an answer, while some long prompt was there.
        calm_gaps: The same before any came.
        first_tokens: Seconds to the first token of each long prompt.
        second_tokens: Seconds from there to its second, which waits for its blocks where another
            engine writes on.
    """

    gaps: list[float] = field(default_factory=list)
    calm_gaps: list[float] = field(default_factory=list)
    first_tokens: list[float] = field(default_factory=list)
    second_tokens: list[float] = field(default_factory=list)


def main(
    model: str,
    *,
    prompt_tokens: int = 8000,
    chats: int = 4,
    prompts: int = 6,
    rounds: int = 2,
    workers_alone: bool = False,
    out: Path = RESULTS,
) -> None:
    """Measure and record.

    Args:
        model: Folder of a checkpoint whose context is long enough.
        prompt_tokens: Length of each long prompt.
        chats: Streams that read answers.
        prompts: Long prompts in each round.
        rounds: How often each way is measured.
        workers_alone: Leave out the ways of one server.
        out: Folder for the record.
    """
    other_programs = OtherPrograms()
    ways = ROLES if workers_alone else {**WAYS, **ROLES}
    seen = {way: Seen() for way in ways}
    with tempfile.TemporaryDirectory(prefix="twostroke-apart-") as folder:
        for number in range(rounds):
            for way, how in ways.items():
                print(f"round {number + 1} of {rounds}: {way}", file=sys.stderr)
                log = Path(folder, f"{number}-{way.replace(' ', '-')}.log")
                length = ("--max-model-len", str(prompt_tokens + 160))
                with (
                    running_workers(model, log, how, *length)
                    if way in ROLES
                    else running_server(model, log, "--data-parallel-size", "2", *length, *how)
                ) as server:
                    asyncio.run(one_round(server.url, seen[way], prompt_tokens, chats, prompts))
    lines = [
        "| two engines | gap P50, calm, ms | P50 | P99 | worst | TTFT of long, s |"
        " then to 2nd, ms |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for way, own in seen.items():
        gaps = statistics.quantiles(own.gaps, n=100)
        lines.append(
            f"| {way} | {1e3 * statistics.median(own.calm_gaps):.1f} | {1e3 * gaps[49]:.1f} |"
            f" {1e3 * gaps[98]:.0f} | {1e3 * max(own.gaps):.0f} |"
            f" {statistics.median(own.first_tokens):.2f} |"
            f" {1e3 * statistics.median(own.second_tokens):.0f} |"
        )
    print("\n".join(lines))
    command = shlex.join(["python", "-m", "benchmarks.failover.prefill_apart", *sys.argv[1:]])
    where = environment(command, other_programs.share())
    text = environment_text(where)
    text += f"- {Path(model).name}, prompts of {prompt_tokens} tokens beside {chats} answers\n\n"
    record: dict[str, Any] = {
        "environment": where,
        "ways": {
            way: {
                "gaps": statistics.quantiles(own.gaps, n=1000),
                "worst": max(own.gaps),
                "prompts": prompts,
                "ttft": own.first_tokens,
                "second_token": own.second_tokens,
            }
            for way, own in seen.items()
        },
    }
    title = "Answers while long prompts arrive"
    name = "prefill_apart_workers" if workers_alone else "prefill_apart"
    write_record(out / name, title, text + "\n".join(lines) + "\n", record)


async def one_round(url: str, seen: Seen, prompt_tokens: int, chats: int, prompts: int) -> None:
    """Read answers for a while, then beside long prompts."""
    drawn, under_load, done = random.Random(0), asyncio.Event(), asyncio.Event()
    async with httpx.AsyncClient(base_url=url, timeout=600, trust_env=False) as client:
        readers = [
            asyncio.create_task(read_answers(client, seen, under_load, done)) for _ in range(chats)
        ]
        await asyncio.sleep(LEAD_SECONDS)
        under_load.set()
        for _ in range(prompts):
            tokens = [drawn.randrange(10, 1000) for _ in range(prompt_tokens)]
            moments = [time.perf_counter()]
            async for moment in events(client, tokens, max_tokens=8):
                moments.append(moment)
                if len(moments) == 3:
                    break
            began, first, second = moments
            seen.first_tokens.append(first - began)
            seen.second_tokens.append(second - first)
        done.set()
        await asyncio.gather(*readers)


async def read_answers(
    client: httpx.AsyncClient, seen: Seen, under_load: asyncio.Event, done: asyncio.Event
) -> None:
    """One short prompt after the other, each with a long answer, until ``done``."""
    while not done.is_set():
        tokens, last = [random.randrange(10, 1000) for _ in range(16)], 0.0
        async for moment in events(client, tokens, max_tokens=ANSWER_TOKENS):
            if last:
                (seen.gaps if under_load.is_set() else seen.calm_gaps).append(moment - last)
            last = moment
            if done.is_set():
                break


async def events(client: httpx.AsyncClient, tokens: list[int], *, max_tokens: int) -> Any:
    """When each event with a token came."""
    body = {"prompt": tokens, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
    async with client.stream("POST", "/v1/completions", json={**body, "stream": True}) as answer:
        answer.raise_for_status()
        async for line in answer.aiter_lines():
            if line.startswith("data: {") and json.loads(line[6:])["choices"]:
                yield time.perf_counter()


if __name__ == "__main__":
    cyclopts.run(main)
