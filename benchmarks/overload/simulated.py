"""Goodput of a simulated server at 0.5 to 10 times its capacity, under four kinds of admission.

    python -m benchmarks.overload.simulated --model 10m

Requests come at random times (Poisson), whatever the server does: an open loop. A good one has its
first token within the target. Capacity is what the server completes of requests that all wait from
the beginning.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path

import cyclopts

from benchmarks.environment import OtherPrograms, environment, write_record
from benchmarks.make_checkpoint import SIZES, model_json
from benchmarks.overload.report import LOADS, Cell, overload_text, verdict
from twostroke.core.config import SchedulerOptions
from twostroke.core.targets import parse_targets
from twostroke.simulator.deployment.options import DeploymentOptions
from twostroke.simulator.results.run import Run
from twostroke.simulator.scenario import Scenario
from twostroke.simulator.simulate import simulate
from twostroke.simulator.workloads.options import SimulatedWorkloadOptions

TITLE = "Overload, simulated: {}"
RESULTS = Path(__file__).parent / "results"
MODES: dict[str, SchedulerOptions] = {
    "fcfs": SchedulerOptions(policy="fcfs"),
    "fcfs, predicted": SchedulerOptions(policy="fcfs", admission="predicted"),
    "deadline": SchedulerOptions(policy="deadline"),
    "deadline, predicted": SchedulerOptions(policy="deadline", admission="predicted"),
}


def main(
    *,
    model: str = "10m",
    gpu: str = "cpu",
    target: float = 1.0,
    seconds: float = 60.0,
    input_len: int = 256,
    output_len: int = 64,
    seed: int = 0,
    replicas: int = 1,
    modes: tuple[str, ...] = tuple(MODES),
    out: Path = RESULTS,
) -> int:
    """Simulate all loads under all modes, print the table, and record it.

    Args:
        model: An embedded or public model, or 10m or 350m for a checkpoint of that size.
        gpu: Which hardware.
        target: Seconds of TTFT.
        seconds: For how long requests arrive.
        input_len: Tokens of a prompt, on average; they spread evenly by half to either side.
        output_len: Of an answer, likewise.
        seed: Of lengths and times.
        replicas: How many, behind the router that loads them evenly.
        modes: Which to simulate; the last of all is judged.
        out: Folder for the record.

    Returns:
        0 if the last mode's goodput at the highest load is at least 0.9 of its peak.
    """
    others = OtherPrograms()
    with tempfile.TemporaryDirectory(prefix="twostroke-overload-") as folder:
        base = Scenario(
            deployment=DeploymentOptions(
                model=model_folder(model, Path(folder)),
                gpu=gpu,
                replicas=replicas,
                router="least-loaded",
            ),
            workload=SimulatedWorkloadOptions(
                workload="random",
                input_len=input_len,
                output_len=output_len,
                range_ratio=0.5,
                seed=seed,
                num_requests=1000 * replicas,
            ),
            targets={"ttft": target},
            watched=parse_targets((f"ttft={target}",)),
        )
        capacity = simulate(replace(base, targets={})).summary.request_throughput
        cells = []
        for mode in modes:
            scheduler = MODES[mode]
            for load in LOADS:
                rate = load * capacity
                workload = replace(base.workload, rate=rate, num_requests=round(rate * seconds))
                run = simulate(replace(base, scheduler=scheduler, workload=workload))
                cells.append(_cell(mode, load, run, target))
    setting = {
        "model": model,
        "hardware": gpu,
        "replicas": replicas,
        "capacity": capacity,
        "target_ttft": target,
        "seconds": seconds,
        "input_len": input_len,
        "output_len": output_len,
    }
    command = (
        f"python -m benchmarks.overload.simulated --model {model} --gpu {gpu}"
        f" --seconds {seconds:g} --target {target:g} --seed {seed}"
        f"{f' --replicas {replicas}' if replicas > 1 else ''}"
        f"{''.join(f' --modes {mode!r}' for mode in modes) if modes != tuple(MODES) else ''}"
    )
    record = {**setting, "cells": [cell.fields() for cell in cells]}
    record["environment"] = environment(command, others.share())
    text = overload_text(record, cells)
    print(text)
    name = f"overload_simulated_{model}" + (f"_{replicas}_replicas" if replicas > 1 else "")
    write_record(out / name, TITLE.format(model), text, record)
    return verdict(cells, target)


def _cell(mode: str, load: float, run: Run, target: float) -> Cell:
    requests, summary = run.result.requests, run.summary
    last = max(request.arrival for request in requests)
    good = [request for request in requests if request.ttft <= target]
    return Cell(
        mode=mode,
        load=load,
        sent=len(requests) + summary.refused_early + summary.refused,
        good=len(good),
        late=len(requests) - len(good),
        refused=summary.refused_early,
        failed=summary.unfinished,
        seconds=last,
        ttft_p95=summary.latencies["ttft"].percentiles[95],
        ttft_p99=summary.latencies["ttft"].percentiles[99],
    )


def model_folder(name: str, folder: Path) -> str:
    """A name that the simulator knows, or the description of a random checkpoint."""
    if name not in SIZES:
        return name
    path = folder / "config.json"
    path.write_text(json.dumps(model_json(SIZES[name])))
    return str(folder)


if __name__ == "__main__":
    cyclopts.run(main)
