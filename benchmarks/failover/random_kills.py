"""Strikes parts of a server at random while many streams run: is every answer the right one?

    python -m benchmarks.failover.random_kills [--target workers] [--streams 1000] [--kills 200]

What is struck, and how: ``kill_targets.py``. Strikes follow one another, each as soon as all is
there again; streams of several kinds run meanwhile, so many at once. Each is compared with the same
call on a server that nothing disturbs. Linux only. Writes benchmarks/results/random_kills.json and
.md, or those of random_kills_TARGET.
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
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import cyclopts
import httpx

from benchmarks.environment import (
    OtherPrograms,
    environment,
    environment_text,
    wrapped,
    write_record,
)
from benchmarks.failover.kill_targets import RANKS, TARGETS, Target, served
from tests.server.engines.streamed_calls import chat_calls
from tests.server.engines.streamed_content import content_of

RESULTS = Path(__file__).parents[1] / "results"
TargetName = Literal["engines", "ranks", "workers", "router", "redis", "ray"]
Ending = Literal["same", "refused", "error", "cut", "unreached", "other"]
ENDINGS: dict[Ending, str] = {
    "same": "same bytes",
    "refused": "refused, named",
    "error": "named error",
    "cut": "cut, right so far",
    "unreached": "unreached",
    "other": "other",
}
LONG = "Prefill reads the whole prompt at once, and decode writes one token per pass. " * 4
CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    **{kind: ("chat/completions", body) for kind, body in chat_calls(max_tokens=60).items()},
    "n = 3": ("completions", {"prompt": LONG, "n": 3, "max_tokens": 40, "logprobs": 1}),
    "long prompt": ("completions", {"prompt": LONG, "max_tokens": 80, "ignore_eos": True}),
}
PAUSE = 1.0  # before a client that was refused asks again; else refusals outnumber the rest
Content = dict[str, str]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one stream.

    Attributes:
        silence: Seconds of its longest pause: before the first event, between two, or before the
            refusal or error.
        last: Seconds of its last pause, which an error ended.
    """

    kind: str
    ending: Ending
    silence: float
    last: float


@dataclass(frozen=True, slots=True)
class Strike:
    """One of them, and seconds until all was there again."""

    how: str
    seconds: float


def main(
    *,
    target: TargetName = "engines",
    streams: int = 1000,
    kills: int = 200,
    at_once: int = 12,
    seeds: int = 6,
    out: Path = RESULTS,
) -> None:
    """Measure and record.

    Args:
        target: What is struck.
        streams: How many at least; they go on until all strikes are done.
        kills: How many strikes.
        at_once: Streams that run at the same time.
        seeds: How many different answers of each kind are asked for.
        out: Folder for the record.
    """
    other_programs = OtherPrograms()
    with tempfile.TemporaryDirectory(prefix="twostroke-kills-") as name:
        folder = Path(name)
        alone = RANKS if target == "ranks" else ()  # ranks round sums in another order than one
        with served(folder, *alone) as url:
            expected = asyncio.run(undisturbed(url, seeds))
        with TARGETS[target](folder) as disturbed:
            outcomes, strikes = asyncio.run(disturb(disturbed, expected, streams, kills, at_once))
            time.sleep(1.0)
            leaked = disturbed.blocks_in_use()
    lines = report(outcomes, strikes, leaked)
    print("\n".join(lines))
    command = shlex.join(["python", "-m", "benchmarks.failover.random_kills", *sys.argv[1:]])
    where = environment(command, other_programs.share())
    text = environment_text(where) + "\n" + wrapped("\n".join(lines)) + "\n"
    by_kind = Counter(f"{each.kind}, {each.ending}" for each in outcomes)
    record: dict[str, Any] = {
        "environment": where,
        "outcomes": dict(Counter(each.ending for each in outcomes)),
        "by_kind": dict(by_kind),
        "blocks_in_use": leaked,
        "strikes": [asdict(each) for each in strikes],
        "not_same": [asdict(each) for each in outcomes if each.ending != "same"],
    }
    name = "random_kills" if target == "engines" else f"random_kills_{target}"
    write_record(out / name, f"Struck at random: {target}", text, record)


def report(outcomes: Sequence[Outcome], strikes: Sequence[Strike], leaked: float) -> list[str]:
    """Two tables, and what errors and pauses were like."""
    counts = Counter(each.ending for each in outcomes)
    errors = [each.last for each in outcomes if each.ending in ("refused", "error")]
    went_on = [each.silence for each in outcomes if each.ending == "same"]
    lines = [
        f"| streams | {' | '.join(ENDINGS.values())} |",
        "|--:" * (len(ENDINGS) + 1) + "|",
        f"| {len(outcomes)} | {' | '.join(str(counts[each]) for each in ENDINGS)} |",
        "",
        "| strike | times | all there again, median s | longest |",
        "|---|--:|--:|--:|",
    ]
    for how in sorted({each.how for each in strikes}):
        seconds = [each.seconds for each in strikes if each.how == how]
        lines.append(
            f"| {how} | {len(seconds)} | {statistics.median(seconds):.1f} | {max(seconds):.1f} |"
        )
    quick = sum(each <= 1.0 for each in errors)
    lines += [
        "",
        f"Named errors within a second of the last event, or of the request: {quick} of"
        f" {len(errors)}; slowest {max(errors, default=0.0):.2f} s.",
        f"Longest pause within an answer that had the same bytes: {max(went_on, default=0.0):.1f}"
        " s.",
        f"KV blocks in use at the end: {leaked}.",
    ]
    return lines


async def undisturbed(url: str, seeds: int) -> dict[tuple[str, int], Content]:
    """What each call says on a server that nothing disturbs."""
    expected = {}
    async with httpx.AsyncClient(base_url=url, timeout=120, trust_env=False) as client:
        for kind in CALLS:
            for seed in range(seeds):
                reader = Reader(kind, seed)
                await reader.read(client)
                assert reader.is_whole and reader.status == 200, reader.refusal
                expected[kind, seed] = content_of(reader.lines)
    return expected


async def disturb(
    target: Target,
    expected: dict[tuple[str, int], Content],
    streams: int,
    kills: int,
    at_once: int,
) -> tuple[list[Outcome], list[Strike]]:
    """Streams and strikes, all drawn from one seed."""
    drawn = random.Random(7)
    outcomes: list[Outcome] = []
    strikes: list[Strike] = []
    over = asyncio.Event()

    async def ask(client: httpx.AsyncClient) -> None:
        while not over.is_set() or len(outcomes) < streams:
            reader = Reader(*drawn.choice(list(expected)))
            await reader.read(client)
            outcomes.append(reader.outcome(expected[reader.kind, reader.seed]))
            if outcomes[-1].ending not in ("same", "error", "cut"):
                await asyncio.sleep(PAUSE)
            print(f"{len(outcomes)} streams, {len(strikes)} strikes", end="\r", file=sys.stderr)

    limits = httpx.Limits(max_connections=at_once)
    async with httpx.AsyncClient(
        base_url=target.url, timeout=120, trust_env=False, limits=limits
    ) as client:
        asking = [asyncio.create_task(ask(client)) for _ in range(at_once)]
        for _ in range(kills):
            await asyncio.sleep(drawn.random())
            (how,) = drawn.choices(list(target.strikes), list(target.strikes.values()))
            began = time.monotonic()
            await asyncio.to_thread(target.strike, how, drawn)
            await asyncio.sleep(0.2)  # what is cut, the other side notices within that
            while not await asyncio.to_thread(target.is_back):
                await asyncio.sleep(0.05)
            strikes.append(Strike(how, time.monotonic() - began))
        over.set()
        await asyncio.gather(*asking)
    return outcomes, strikes


class Reader:
    """Reads one stream, and judges it.

    Attributes:
        lines: Its events.
        status: Of HTTP; 0 if there was no answer.
        refusal: The body where that is not 200.
        is_whole: Whether it ended as HTTP says.
    """

    def __init__(self, kind: str, seed: int) -> None:
        self.kind, self.seed = kind, seed
        self.lines: list[str] = []
        self.status, self.refusal, self.is_whole = 0, "", False
        self._silence = self._last = 0.0

    async def read(self, client: httpx.AsyncClient) -> None:
        """Ask, and read until the stream ends, however that happens."""
        route, body = CALLS[self.kind]
        body = {"model": "pilot", "seed": self.seed, "temperature": 0.9, "stream": True, **body}
        self._before = time.monotonic()
        try:
            async with client.stream("POST", f"/v1/{route}", json=body) as answer:
                self.status = answer.status_code
                if self.status != 200:
                    self.refusal = (await answer.aread()).decode()
                async for line in answer.aiter_lines():
                    if line.startswith("data") and line != "data: [DONE]":
                        self.lines.append(line)
                        self._note_time()
            self.is_whole = True
        except httpx.TransportError:
            pass
        if self.status != 200 or not self.is_whole:
            self._note_time()

    def outcome(self, expected: Content) -> Outcome:
        return Outcome(self.kind, self._ending(expected), self._silence, self._last)

    def _ending(self, expected: Content) -> Ending:
        said = content_of(self.lines)
        if self.is_whole and self.status != 200:
            return "refused" if _is_named(self.refusal) else "other"
        if self.is_whole and any(".error" in key for key in said):
            said = {key: text for key, text in said.items() if ".error" not in key}
            return "error" if _is_beginning(said, expected) else "other"
        if self.is_whole:
            return "same" if said == expected else "other"
        if not self.status:
            return "unreached"
        return "cut" if _is_beginning(said, expected) else "other"

    def _note_time(self) -> None:
        now = time.monotonic()
        self._last, self._before = now - self._before, now
        self._silence = max(self._silence, self._last)


def _is_beginning(said: Content, expected: Content) -> bool:
    """Whether no byte of it is another than in the whole answer."""
    return all(expected.get(key, "").startswith(text) for key, text in said.items())


def _is_named(refusal: str) -> bool:
    """Whether it is a JSON error that says what is wrong."""
    try:
        error = json.loads(refusal)["error"]
    except (ValueError, KeyError, TypeError):
        return False
    return bool(error.get("message")) and bool(error.get("type"))


if __name__ == "__main__":
    cyclopts.run(main)
