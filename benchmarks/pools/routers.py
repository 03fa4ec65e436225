"""Routers compared on traces: first tokens, gaps and prefix hits, by how requests are spread.

    python -m benchmarks.pools.routers TRACES --out FOLDER

Each router serves the same requests on the same replicas, which are kept at about the same load.
The second table is of a pool that grows, by how slowly its new replicas start.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import get_args

import cyclopts

from benchmarks.environment import OtherPrograms, environment, environment_text, write_record
from twostroke.routing.autoscaler import AutoscalerOptions
from twostroke.routing.routers import RouterName
from twostroke.simulator.deployment.options import DeploymentOptions
from twostroke.simulator.results.run import Run
from twostroke.simulator.scenario import Scenario
from twostroke.simulator.simulate import simulate
from twostroke.simulator.workloads.options import SimulatedWorkloadOptions

RESULTS = Path(__file__).parents[1] / "results"
TARGETS = {"ttft": 2.0, "tpot": 0.1}
MODEL, GPU = "llama-3.1-8b", "h100"
RAMPS = (0.0, 10.0, 60.0)
GROWING_RATE = 30.0


@dataclass(frozen=True, slots=True)
class Load:
    """A trace, its requests a second for each replica, and how many of those there are."""

    name: str
    file: str
    rate: float
    fleets: tuple[int, ...]


AZURE = Load("Azure, conversations", "azure_splitwise_conv.csv", 13.0, (8,))
MOONCAKE = Load("Mooncake, conversations", "mooncake_conversation.jsonl", 0.6, (8, 32, 64))
LOADS = (AZURE, MOONCAKE)


@dataclass(frozen=True, slots=True)
class Row:
    """What became of one run; times in seconds.

    Attributes:
        good: Share of the requests that met all targets.
        hits: Share of prompt tokens that were cached.
    """

    load: str
    replicas: float
    variant: str
    ttft_p50: float
    ttft_p95: float
    tpot_p95: float
    hits: float
    good: float


def main(traces: Path, *, requests: int = 3000, out: Path = RESULTS) -> None:
    """Simulate, and record.

    Args:
        traces: Folder with the traces that ``LOADS`` names.
        requests: Of each run.
    """
    other_programs, rows, growing = OtherPrograms(), list[Row](), list[Row]()
    for load in LOADS:
        for replicas in load.fleets:
            for router in get_args(RouterName):
                deployment = deploy(replicas, router)
                run = simulate(scenario(deployment, load, traces, load.rate * replicas, requests))
                rows.append(row(load.name, replicas, router, run))
                print(line(rows[-1]), flush=True)
    scaling = AutoscalerOptions(autoscale="kv", autoscale_target=0.2, max_replicas=8)
    routers: Sequence[RouterName] = ("least-loaded", "kv-occupancy")
    for router in routers:
        for ramp in RAMPS:
            deployment, count = deploy(1, router, ramp), 2 * requests
            run = simulate(scenario(deployment, AZURE, traces, GROWING_RATE, count, scaling))
            name = f"{router}, {ramp:g} s"
            growing.append(row(AZURE.name, run.summary.replicas_mean, name, run))
            print(line(growing[-1]), flush=True)
    command = shlex.join(["python", "-m", "benchmarks.pools.routers", *sys.argv[1:]])
    where = environment(command, other_programs.share())
    text = (
        f"{environment_text(where)}\n{requests:,} requests a run of {MODEL} on {GPU}, prefix cache"
        f" on;\ngood: TTFT within {TARGETS['ttft']:g} s and TPOT within"
        f" {1000 * TARGETS['tpot']:g} ms.\n\n{table('router', rows)}\nA pool that grows from one"
        f" replica at {GROWING_RATE:g} requests a second ({2 * requests:,}),\nby `--slow-start`:"
        f" each start takes 35 s.\n\n{table('router, ramp', growing)}"
    )
    record = {"environment": where, "routers": [asdict(each) for each in rows]}
    record["slow_start"] = [asdict(each) for each in growing]
    write_record(out / "routers", "Routers on traces", text, record)


def deploy(replicas: int, router: RouterName, slow_start: float = 0.0) -> DeploymentOptions:
    return DeploymentOptions(
        model=MODEL, gpu=GPU, replicas=replicas, router=router, slow_start=slow_start
    )


def scenario(
    deployment: DeploymentOptions,
    load: Load,
    traces: Path,
    rate: float,
    requests: int,
    scaling: AutoscalerOptions | None = None,
) -> Scenario:
    workload = SimulatedWorkloadOptions(
        workload="mooncake-conv" if load.file.endswith("jsonl") else "trace",
        trace_path=traces / load.file,
        rate=rate,
        num_requests=requests,
    )
    return Scenario(
        deployment=deployment,
        workload=workload,
        scaling=scaling or AutoscalerOptions(),
        targets=TARGETS,
    )


def row(load: str, replicas: float, variant: str, run: Run) -> Row:
    summary = run.summary
    ttft, tpot = (summary.latencies[name].percentiles for name in ("ttft", "tpot"))
    hits = summary.prefix_hit_rate
    good = summary.good_share or 0.0
    return Row(load, replicas, variant, ttft[50], ttft[95], tpot[95], hits, good)


def line(own: Row) -> str:
    return (
        f"| {own.load} | {own.replicas:.3g} | {own.variant} | {own.ttft_p50:.2f} s"
        f" | {own.ttft_p95:.2f} s | {1000 * own.tpot_p95:.0f} ms | {own.hits:.0%}"
        f" | {own.good:.1%} |"
    )


def table(variants: str, rows: Sequence[Row]) -> str:
    lines = [
        f"| load | replicas | {variants} | TTFT P50 | TTFT P95 | TPOT P95 | hits | good |",
        "|---|--:|---|--:|--:|--:|--:|--:|",
        *map(line, rows),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    cyclopts.run(main)
