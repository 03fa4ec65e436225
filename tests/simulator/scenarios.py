"""Small scenarios and their runs, for tests of whole simulations."""

from __future__ import annotations

from typing import Any

from twostroke.simulator.results.run import Run
from twostroke.simulator.scenario import Scenario
from twostroke.simulator.simulate import simulate
from twostroke.simulator.sweep import sweep
from twostroke.simulator.workloads.options import SimulatedWorkloadOptions


def scenario(**workload: Any) -> Scenario:
    fields = {"num_requests": 30, "rate": 20.0, **workload}
    return Scenario(workload=SimulatedWorkloadOptions(**fields), targets={"ttft": 0.02})


def runs(*axes: str, **workload: Any) -> list[Run]:
    return [simulate(varied) for varied in sweep(scenario(**workload), axes)]
