"""How fast the simulator simulates: requests per second of one core, stepping and jumping.

``python -m benchmarks.simulator.speed`` prints a table; ``--output FILE`` writes JSON too. Seconds
are those that this process computed, so that whatever else runs on the machine counts little. What
a simulated request costs here depends on how often requests come and go beside it, so several
workloads are timed. With the folder TWOSTROKE_TRACES, the Mooncake conversation trace is one of
them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from pathlib import Path
from typing import Any

from twostroke.core.config import SchedulerOptions
from twostroke.simulator.deployment.options import DeploymentOptions
from twostroke.simulator.scenario import Scenario
from twostroke.simulator.simulate import simulate
from twostroke.simulator.workloads.options import SimulatedWorkloadOptions

LOOP = 10_000_000
LARGE = SchedulerOptions(max_num_seqs=256, max_num_batched_tokens=8192)
SMALL = SchedulerOptions(max_num_seqs=64, max_num_batched_tokens=2048)


def scenarios() -> dict[str, Scenario]:
    """By name: equal requests in large batches, chats at two loads, and traces."""
    scenarios_by_name = {
        "batches of 256, 128 in, 128 out": Scenario(
            workload=SimulatedWorkloadOptions(
                workload="random", input_len=128, output_len=128, num_requests=5120
            ),
            scheduler=LARGE,
        ),
        "chats, 8 a second": Scenario(
            workload=SimulatedWorkloadOptions(num_requests=2000, rate=8.0), scheduler=LARGE
        ),
        "chats, 1 a second": Scenario(
            workload=SimulatedWorkloadOptions(num_requests=2000, rate=1.0), scheduler=SMALL
        ),
        "azure-conv lengths, 6 a second": Scenario(
            workload=SimulatedWorkloadOptions(workload="azure-conv", num_requests=2000, rate=6.0),
            scheduler=SMALL,
        ),
    }
    if os.environ.get("TWOSTROKE_TRACES"):
        scenarios_by_name["mooncake-conv, all 12,031, 4 replicas"] = Scenario(
            deployment=DeploymentOptions(replicas=4, router="prefix-affinity"),
            workload=SimulatedWorkloadOptions(workload="mooncake-conv"),
            scheduler=LARGE,
        )
    return scenarios_by_name


def measure(scenario: Scenario, jump: bool) -> dict[str, Any]:
    """One simulation: its size, and the seconds that it took."""
    began = time.process_time()
    run = simulate(scenario, jump=jump)
    seconds = time.process_time() - began
    requests = len(run.result.requests)
    return {
        "requests": requests,
        "steps": run.summary.steps,
        "seconds": seconds,
        "per_second": requests / seconds,
    }


def loop_seconds() -> float:
    """How fast this core runs Python: CPU seconds of ``LOOP`` additions, the best of three."""
    seconds = []
    for _ in range(3):
        began, total = time.process_time(), 0
        for number in range(LOOP):
            total += number
        seconds.append(time.process_time() - began)
    return min(seconds)


def main(output: Path | None) -> None:
    results: dict[str, Any] = {}
    loop = loop_seconds()
    print(f"{LOOP:,} additions in a loop: {loop:.2f} s")
    print(
        f"{'workload':42} {'steps':>8} {'stepping':>12} {'jumping':>12}  (requests/s of CPU time)"
    )
    for name, scenario in scenarios().items():
        stepping, jumping = measure(scenario, False), measure(scenario, True)
        results[name] = {"stepping": stepping, "jumping": jumping}
        rates = f"{stepping['per_second']:>12.0f} {jumping['per_second']:>12.0f}"
        print(f"{name:42} {jumping['steps']:>8} {rates}", flush=True)
    if output is not None:
        machine = {"machine": platform.platform(), "python": platform.python_version()}
        output.write_text(
            json.dumps({**machine, "loop_seconds": loop, "results": results}, indent=1) + "\n",
            encoding="utf-8",
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path)
    main(parser.parse_args().output)
