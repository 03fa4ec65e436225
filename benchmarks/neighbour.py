"""A light tenant beside ordinary ones and an attacker: is it served as if the attacker were not?

The measuring side of ``benchmarks.soak``: short streamed requests under a key of their own, in
slices with and without the attacker, in turn: what else the machine does delays both. Ordinary
visitors come all the time, so that both are times of a server that is at work.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import httpx

from benchmarks.attacks import KEY_VARIABLE

TTFT_FACTOR = 2.0
# Below so many requests a 99th percentile is the one worst of them: the median is judged.
ENOUGH_VISITS = 200
STARVED_SHARE = 0.25
VISITORS = 3
PAUSE_SECONDS = 0.1
VISIT_SECONDS = 60.0
BODY = {"prompt": "What is the KV cache?", "max_tokens": 4, "stream": True, "temperature": 0}


@dataclass(slots=True)
class Phase:
    """What the light tenant saw during one phase: ``attack`` is empty without an attacker.

    Attributes:
        ttfts: Seconds to the first event, of each request that was answered.
        refused: Requests that got 429.
        failed: Other requests without an answer, in words.
        rounds: Of the attack.
        num_sent: Requests of the attack.
        seconds: How long it lasted.
        attack_statuses: Of the attack's answers.
    """

    attack: str = ""
    ttfts: list[float] = field(default_factory=list)
    refused: int = 0
    failed: list[str] = field(default_factory=list)
    rounds: int = 0
    num_sent: int = 0
    seconds: float = 0.0
    attack_statuses: dict[str, int] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """All requests of the light key."""
        return len(self.ttfts) + self.refused + len(self.failed)

    @property
    def median(self) -> float:
        """Seconds; infinite where no request was answered."""
        return statistics.median(self.ttfts) if self.ttfts else float("inf")

    @property
    def p99(self) -> float:
        """Seconds; infinite where no request was answered."""
        if len(self.ttfts) < 2:
            return max(self.ttfts, default=float("inf"))
        return statistics.quantiles(self.ttfts, n=100, method="inclusive")[98]


@dataclass(frozen=True, slots=True)
class Verdict:
    """One attack against the time without.

    Attributes:
        phase: Of the attack, all slices together.
        calm: The slices without it in between.
        factor: Of the P99 TTFT, or of the median in the best pair of slices.
        enough: Whether it is that of the P99.
        clean: Whether no request was refused or failed.
    """

    phase: Phase
    calm: Phase
    factor: float
    enough: bool
    clean: bool
    held: bool


def judge_phases(phases: Sequence[Phase]) -> list[Verdict]:
    """Compare each attack's slices with those without, which lie right before each of them.

    A 429 or a failure is never allowed, nor a quarter or less of the requests per second: they
    follow each other, so a key that waits long sends few. An attack may get no 5xx. In a short run
    times are judged by the best pair of slices: other work on the machine harms some of them, a
    server that lets one key harm another, all.
    """
    verdicts = []
    for attack in dict.fromkeys(phase.attack for phase in phases if phase.attack):
        places = [i for i, phase in enumerate(phases) if phase.attack == attack]
        pairs = [(phases[i], phases[i - 1]) for i in places]
        phase, calm = (join(slices) for slices in zip(*pairs))
        enough = min(len(phase.ttfts), len(calm.ttfts)) >= ENOUGH_VISITS
        if enough:
            factor, share = phase.p99 / calm.p99, _share(phase, calm)
        else:
            factor = min(during.median / before.median for during, before in pairs)
            share = max(_share(during, before) for during, before in pairs)
        broken = any(status.startswith("5") for status in phase.attack_statuses)
        clean = bool(phase.ttfts) and not (broken or phase.refused or phase.failed)
        held = clean and share > STARVED_SHARE and factor <= TTFT_FACTOR
        verdicts.append(Verdict(phase, calm, factor, enough, clean, held))
    return verdicts


def to_repeat(phases: Sequence[Phase]) -> list[str]:
    """Attacks that missed in so few requests that more slices may still show otherwise."""
    return [
        verdict.phase.attack
        for verdict in judge_phases(phases)
        if verdict.clean and not (verdict.held or verdict.enough)
    ]


def in_turn(attacks: Iterable[str], pairs: int) -> list[str]:
    """Of each attack some pairs of slices: without it, then with it."""
    return [name for attack in attacks for name in ("", attack) * pairs]


def _share(phase: Phase, calm: Phase) -> float:
    """Of the requests per second without the attack."""
    return (phase.count * calm.seconds) / max(1.0, calm.count * phase.seconds)


def join(phases: Sequence[Phase]) -> Phase:
    """Several slices of one kind as one phase."""
    statuses = Counter[str]()
    for phase in phases:
        statuses.update(phase.attack_statuses)
    return Phase(
        attack=phases[0].attack,
        ttfts=[ttft for phase in phases for ttft in phase.ttfts],
        refused=sum(phase.refused for phase in phases),
        failed=[failure for phase in phases for failure in phase.failed],
        rounds=sum(phase.rounds for phase in phases),
        num_sent=sum(phase.num_sent for phase in phases),
        seconds=sum(phase.seconds for phase in phases),
        attack_statuses=dict(statuses),
    )


def phases_table(phases: Sequence[Phase]) -> str:
    """Markdown: a row for each attack, with the time without it in between."""
    lines = [
        (
            "| attack | its requests | light requests, without | TTFT P50, without | P99, without |"
            " against without | 429 | failed | |"
        ),
        "|---|---|---|---|---|---|---|---|---|",
        *(_row(verdict) for verdict in judge_phases(phases)),
    ]
    return "\n".join(lines)


def _row(verdict: Verdict) -> str:
    phase, calm = verdict.phase, verdict.calm
    answers = ", ".join(f"{n} x {code}" for code, n in sorted(phase.attack_statuses.items()))
    held = "held" if verdict.held else "MISSED"
    return (
        f"| {phase.attack} | {phase.num_sent}, got {answers or 'none'} |"
        f" {phase.count}, {calm.count} |"
        f" {phase.median * 1e3:.0f}, {calm.median * 1e3:.0f} ms |"
        f" {phase.p99 * 1e3:.0f}, {calm.p99 * 1e3:.0f} ms |"
        f" {verdict.factor:.2f}x {'P99' if verdict.enough else 'P50'} |"
        f" {phase.refused} | {len(phase.failed)} | {held} |"
    )


async def measure_phases(
    url: str, light_key: str, attack_key: str, attacks: Sequence[str], seconds: Sequence[float]
) -> list[Phase]:
    """What the light key sees in one phase after the other.

    Args:
        attacks: Of each phase; empty for none.
        seconds: Of each phase.
    """
    headers = {"authorization": f"Bearer {light_key}"}
    phases = []
    async with httpx.AsyncClient(
        base_url=url, headers=headers, timeout=VISIT_SECONDS, trust_env=False
    ) as client:
        for name, length in zip(attacks, seconds):
            attacker = None
            if name:
                attacker = await _start_attack(name, url, attack_key, length)
                assert attacker.stdout is not None
                await attacker.stdout.readline()
            phase = await measure_phase(client, name, length)
            if attacker is not None:
                output, _ = await attacker.communicate()
                report = json.loads(output)
                phase.rounds, phase.num_sent = report["rounds"], report["sent"]
                phase.attack_statuses = report["statuses"]
            phases.append(phase)
    return phases


async def measure_phase(client: httpx.AsyncClient, attack: str, seconds: float) -> Phase:
    """Some visitors for ``seconds``, each sending one request after another."""
    phase, began = Phase(attack), time.perf_counter()

    async def visit() -> None:
        while time.perf_counter() < began + seconds:
            try:
                await _visit(client, phase)
            except (httpx.HTTPError, ValueError) as error:
                phase.failed.append(f"{type(error).__name__}: {error}")
            await asyncio.sleep(PAUSE_SECONDS)

    await asyncio.gather(*(visit() for _ in range(VISITORS)))
    phase.seconds = time.perf_counter() - began
    return phase


async def _visit(client: httpx.AsyncClient, phase: Phase) -> None:
    began, ttft = time.perf_counter(), None
    async with client.stream("POST", "/v1/completions", json=BODY) as response:
        if response.status_code == 429:
            phase.refused += 1
            return
        if response.status_code != 200:
            phase.failed.append(f"HTTP {response.status_code}")
            return
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                if "error" in json.loads(line[6:]):
                    phase.failed.append(line[:200])
                    return
                ttft = ttft or time.perf_counter() - began
    if ttft is None:
        phase.failed.append("an answer without a token")
    else:
        phase.ttfts.append(ttft)


async def _start_attack(
    name: str, url: str, key: str, seconds: float
) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.attacks", name, url, str(seconds)),
        env={**os.environ, KEY_VARIABLE: key},
        stdout=asyncio.subprocess.PIPE,
    )
