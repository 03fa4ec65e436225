"""How long a large fleet takes to simulate: by its size, and a day of 1,000 replicas.

    python -m benchmarks.pools.thousand_replicas TRACES

The first table keeps the load of each replica, so that what grows with the fleet shows. The second
is of a day that is made of an hour's trace as ``autoscaling.py`` makes it, on small replicas, for
which it is a load. Seconds are those that the process computed. Writes
benchmarks/results/thousand_replicas.json and .md.
"""

from __future__ import annotations

import shlex
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import get_args

import cyclopts

from benchmarks.environment import OtherPrograms, environment, environment_text, write_record
from benchmarks.pools.autoscaling import write_day
from twostroke.core.config import SchedulerOptions
from twostroke.routing.routers import RouterName
from twostroke.simulator.deployment.options import DeploymentOptions
from twostroke.simulator.scenario import Scenario
from twostroke.simulator.simulate import simulate
from twostroke.simulator.workloads.options import SimulatedWorkloadOptions

RESULTS = Path(__file__).parents[1] / "results"
GROWN, REPEATED = "azure_splitwise_conv.csv", "azure_splitwise_code.csv"
TARGETS = {"ttft": 2.0, "tpot": 0.1}
MODEL, GPU, RATE = "llama-3.1-8b", "h100", 8.0  # requests a second of each replica


@dataclass(frozen=True, slots=True)
class Outcome:
    """One simulation.

    Attributes:
        hours: Simulated.
        seconds: Of this process.
        busy: Share of the replicas' time in which a step ran.
    """

    what: str
    replicas: int
    requests: int
    steps: int
    hours: float
    seconds: float
    busy: float
    good: float

    @property
    def row(self) -> str:
        per_request = 1e6 * self.seconds / self.requests
        return (
            f"| {self.what} | {self.replicas:,} | {self.requests:,} | {self.steps:,}"
            f" | {self.hours:.2f} | {self.busy:.0%} | {self.good:.1%} | {self.seconds:.1f}"
            f" | {per_request:.0f} |"
        )


HEAD = """\
| what | replicas | requests | steps | hours | busy | good | CPU s | us a request |
|---|--:|--:|--:|--:|--:|--:|--:|--:|"""


def main(
    traces: Path,
    *,
    requests: int = 100,
    fleets: tuple[int, ...] = (10, 100, 1000),
    routers: tuple[RouterName, ...] = get_args(RouterName),
    model: str = MODEL,
    gpu: str = "cpu",
    peak: float = 12.0,
    ttft: float = 120.0,
    hours: float = 24.0,
    out: Path = RESULTS,
) -> None:
    """Simulate, and record.

    Args:
        traces: Folder with Azure's of 2023: azure_splitwise_conv.csv for the first table, and
            azure_splitwise_code.csv for the day.
        requests: Of each replica, in each row of the first table.
        fleets: Sizes for the first table.
        routers: For the first table.
        model: Of the day.
        gpu: Of the day: what each of its 1,000 replicas has.
        peak: Of the day: requests a second in the afternoon, without bursts.
        ttft: Of the day: within how many seconds a first token is good.
        hours: Of the day, from midnight on.
        out: Folder for the record.
    """
    other_programs = OtherPrograms()
    growth, days = list[Outcome](), list[Outcome]()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.csv"
        for replicas in fleets:
            write_repeated(traces / GROWN, path, requests * replicas)
            workload = SimulatedWorkloadOptions(
                workload="trace", trace_path=path, rate=RATE * replicas
            )
            for router in routers:
                deployment = DeploymentOptions(
                    model=MODEL, gpu=GPU, replicas=replicas, router=router
                )
                scenario = Scenario(deployment=deployment, workload=workload, targets=TARGETS)
                growth.append(timed(router, scenario))
                print(growth[-1].row, flush=True)
        if hours:
            write_day(traces / REPEATED, path, peak, hours)
            scenario = Scenario(
                deployment=DeploymentOptions(
                    model=model, gpu=gpu, replicas=1000, router="least-loaded"
                ),
                workload=SimulatedWorkloadOptions(workload="trace", trace_path=path),
                scheduler=SchedulerOptions(max_num_seqs=64, max_num_batched_tokens=2048),
                targets={"ttft": ttft},
            )
            days.append(timed(f"{model} on {gpu}", scenario))
            print(days[-1].row, flush=True)
    command = shlex.join(["python", "-m", "benchmarks.pools.thousand_replicas", *sys.argv[1:]])
    where = environment(command, other_programs.share())
    text = (
        f"{environment_text(where)}\n{MODEL} on {GPU}, {RATE:g} requests a second for each replica;"
        f" good: TTFT within {TARGETS['ttft']:g} s and\nTPOT within {1000 * TARGETS['tpot']:g} ms."
        f"\n\n{table(growth)}\nA day; good: TTFT within {ttft:g} s.\n\n{table(days)}"
    )
    record = {"environment": where, "growth": [asdict(each) for each in growth]}
    record["days"] = [asdict(each) for each in days]
    write_record(out / "thousand_replicas", "A thousand replicas, simulated", text, record)


def write_repeated(trace: Path, to: Path, count: int) -> None:
    """Write so many requests: a trace again and again, each time after the time before."""
    header, *rows = trace.read_text().splitlines()
    arrived = header.split(",").index("arrived_at")
    fields = [row.split(",") for row in rows]
    times = [float(each[arrived]) for each in fields]
    with to.open("w") as file:
        file.write(header + "\n")
        for number in range(count):
            again, row = divmod(number, len(rows))
            fields[row][arrived] = f"{times[row] + again * times[-1]:.4f}"
            file.write(",".join(fields[row]) + "\n")


def timed(what: str, scenario: Scenario) -> Outcome:
    """Simulate, by this process's time: making the fleet and summing up count, too."""
    began = time.process_time()
    run = simulate(scenario)
    seconds, summary = time.process_time() - began, run.summary
    return Outcome(
        what,
        scenario.deployment.replicas,
        summary.completed,
        summary.steps,
        summary.duration / 3600,
        seconds,
        summary.use.busy,
        summary.good_share or 0.0,
    )


def table(outcomes: list[Outcome]) -> str:
    return "\n".join([HEAD, *(each.row for each in outcomes)]) + "\n"


if __name__ == "__main__":
    cyclopts.run(main)
