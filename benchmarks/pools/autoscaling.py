"""A day on a pool: what it costs and how often targets are met, by what the pool is scaled by.

    python -m benchmarks.pools.autoscaling TRACE --out FOLDER

The day is made of an hour's trace: lengths in its order, again and again, at a rate that follows a
sine between a tenth of its peak at night and the peak in the afternoon, with a burst of twice the
rate for five minutes of each hour. Each pool serves the same requests.
"""

from __future__ import annotations

import math
import shlex
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import cyclopts
import numpy as np

from benchmarks.environment import OtherPrograms, environment, environment_text, write_record
from twostroke.routing.autoscaler import AutoscalerOptions
from twostroke.simulator.deployment.options import DeploymentOptions
from twostroke.simulator.reports.fields import run_fields
from twostroke.simulator.results.run import Run
from twostroke.simulator.scenario import Scenario
from twostroke.simulator.simulate import simulate
from twostroke.simulator.workloads.options import SimulatedWorkloadOptions

RESULTS = Path(__file__).parents[1] / "results"
DAY, BURST_SECONDS, NIGHT = 86_400.0, 300.0, 0.1
TARGETS = {"ttft": 2.0, "tpot": 0.1}
MOST = 8
Pools = list[tuple[str, dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """One pool's day.

    Attributes:
        good: Share of the requests that met all targets.
        mean: Replicas that were paid for, on average.
    """

    pool: str
    good: float
    ttft_p99: float
    mean: float
    most: int
    started: int
    dollars: float
    scaling: list[dict[str, float]]


def main(
    trace: Path,
    *,
    peak: float = 4.0,
    model: str = "llama-3.1-8b",
    gpu: str = "l40s",
    hours: float = 24.0,
    out: Path = RESULTS,
) -> None:
    """Simulate each pool's day, and record.

    Args:
        trace: Azure's conversations of 2023 (azure_splitwise_conv.csv).
        peak: Requests a second in the afternoon, without bursts.
        hours: Of the day, from midnight on.
        out: Folder for the record.
    """
    other_programs = OtherPrograms()
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory() as folder:
        day = Path(folder) / "day.csv"
        count = write_day(trace, day, peak, hours)
        deployment = DeploymentOptions(model=model, gpu=gpu, router="least-loaded")
        workload = SimulatedWorkloadOptions(workload="trace", trace_path=day)
        for name, scaling in pools():
            replicas = scaling.pop("replicas", 1)
            scenario = Scenario(
                deployment=DeploymentOptions(**{**asdict(deployment), "replicas": replicas}),
                workload=workload,
                scaling=AutoscalerOptions(max_replicas=MOST, **scaling),
                targets=TARGETS,
            )
            outcomes.append(outcome(name, simulate(scenario), count))
            print(row(outcomes[-1]), flush=True)
    command = shlex.join(["python", "-m", "benchmarks.pools.autoscaling", *sys.argv[1:]])
    where = environment(command, other_programs.share())
    text = (
        f"{environment_text(where)}\n{count:,} requests in {hours:g} hours, {model} on {gpu}; good:"
        f" TTFT within {TARGETS['ttft']:g} s\nand TPOT within {1000 * TARGETS['tpot']:g} ms.\n\n"
        + table(outcomes)
    )
    record = {"environment": where, "outcomes": [asdict(each) for each in outcomes]}
    write_record(out / "autoscaling", "A day on a pool", text, record)


def write_day(trace: Path, to: Path, peak: float, hours: float) -> int:
    """Write the day as a trace of the same form; returns how many requests it has."""
    header, *rows = trace.read_text().splitlines()
    columns = header.split(",")
    arrived = columns.index("arrived_at")
    draw = np.random.default_rng(0)
    times, now = [], 0.0
    while True:
        now += draw.exponential(1 / (2 * peak))  # thinned below
        if now >= 3600 * hours:
            break
        if draw.random() < rate_at(now, peak) / (2 * peak):
            times.append(now)
    with to.open("w") as file:
        file.write(header + "\n")
        for number, time in enumerate(times):
            fields = rows[number % len(rows)].split(",")
            fields[arrived] = f"{time:.3f}"
            file.write(",".join(fields) + "\n")
    return len(times)


def rate_at(time: float, peak: float) -> float:
    """Requests a second: least at 3 in the morning, most at 3 in the afternoon."""
    wave = 0.5 - 0.5 * math.cos(2 * math.pi * (time / DAY - 3 / 24))
    rate = peak * (NIGHT + (1 - NIGHT) * wave)
    return 2 * rate if time % 3600 < BURST_SECONDS else rate


def pools() -> Pools:
    """Pools of one size, and each signal at three targets."""
    fixed: Pools = [(f"{count}, always", {"replicas": count}) for count in (2, 3, 4, 6)]
    scaled: Pools = [
        (f"{signal} {target:g}", {"autoscale": signal, "autoscale_target": target})
        for signal, targets in (
            ("kv", (0.2, 0.3, 0.45)),
            ("utilisation", (0.5, 0.7, 0.9)),
            ("requests", (8.0, 16.0, 32.0)),
        )
        for target in targets
    ]
    return [*fixed, *scaled]


def outcome(name: str, run: Run, count: int) -> Outcome:
    summary, fields = run.summary, run_fields(run)
    good = round((summary.good_share or 0.0) * summary.completed)
    return Outcome(
        name,
        good / count,
        summary.latencies["ttft"].percentiles[99],
        summary.replicas_mean,
        summary.replicas_most,
        summary.started,
        summary.dollars,
        fields["scaling"],
    )


def row(own: Outcome) -> str:
    return (
        f"| {own.pool} | {own.good:.2%} | {own.ttft_p99:.2f} s | {own.mean:.2f} | {own.most}"
        f" | {own.started} | {own.dollars:.0f} |"
    )


def table(outcomes: Sequence[Outcome]) -> str:
    lines = [
        "| pool | good | TTFT P99 | replicas, mean | most | started | $ |",
        "|---|--:|--:|--:|--:|--:|--:|",
        *map(row, outcomes),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    cyclopts.run(main)
