"""What was measured on the live engine, as it is kept, and the same requests in the simulator."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.environment import ROOT
from benchmarks.simulator.live_workloads import SATURATING, Pace, workloads
from twostroke.core.config import CacheConfig
from twostroke.simulator.calibration.machine_speed import Speed
from twostroke.simulator.deployment.options import DeploymentOptions
from twostroke.simulator.fleet.result import RequestResult
from twostroke.simulator.scenario import Scenario
from twostroke.simulator.simulate import simulate
from twostroke.simulator.workloads.options import SimulatedWorkloadOptions

RESULTS = ROOT / "benchmarks" / "results" / "live_engine.json"
# What is kept of a request: seconds since the workload began, and tokens.
FIELDS = ("number", "arrival", "first_token", "finish", "prompt_tokens", "output_tokens")


def load_kept() -> dict[str, Any]:
    """Every model's last measurement; without models if nothing has been measured yet."""
    if not RESULTS.is_file():
        return {"models": {}}
    kept: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8"))
    return kept


def save_kept(kept: dict[str, Any]) -> None:
    RESULTS.write_text(json.dumps(kept) + "\n", encoding="utf-8")


def suited_pace(measured: dict[str, Any]) -> Pace:
    """From the most chats a second that the simulator finds: the same load on any machine."""
    with TemporaryDirectory() as folder:
        results = simulate(scenario(measured, SATURATING, Path(folder))).result.requests
    return Pace.suited(len(results) / max(result.finish for result in results))


def scenario(
    measured: dict[str, Any], workload: SimulatedWorkloadOptions, folder: Path
) -> Scenario:
    """What ``twostroke simulate`` would run, on the calibration in ``measured``."""
    model = short_name(measured["model"])
    config, file = folder / f"{model}.json", folder / f"{model}.toml"
    config.write_text(json.dumps(measured["config"]), encoding="utf-8")
    file.write_text(measured["efficiencies"], encoding="utf-8")
    return Scenario(
        deployment=DeploymentOptions(model=str(config), gpu="cpu", efficiencies=str(file)),
        workload=workload,
        cache=replace(CacheConfig(), kv_cache_memory=measured["kv_cache_memory"]),
    )


def simulated(measured: dict[str, Any], name: str, folder: Path) -> list[RequestResult]:
    """The same requests in the simulator."""
    return simulate(
        scenario(measured, workloads(Pace(**measured["pace"]))[name], folder)
    ).result.requests


def calibrated_speed(measured: dict[str, Any]) -> Speed:
    """The machine's speed when the model was calibrated."""
    kept = tomllib.loads(measured["efficiencies"])
    if "speed" not in kept:
        raise SystemExit(
            "the kept calibration does not say at which speed it was made: calibrate anew"
        )
    return Speed(**kept["speed"])


def short_name(model: str) -> str:
    """A model's name without the folder that its checkpoint is in."""
    return Path(model).name


def results_of(rows: list[list[float]]) -> list[RequestResult]:
    """Requests of a kept measurement."""
    return [
        RequestResult(
            number=int(number),
            replica=0,
            arrival=arrival,
            scheduled=first,
            first_token=first,
            finish=finish,
            prompt_tokens=int(prompt),
            output_tokens=int(output),
            cached_tokens=0,
            preemptions=0,
        )
        for number, arrival, first, finish, prompt, output in rows
    ]


def row_of(result: RequestResult) -> list[float]:
    """A request as it is kept."""
    return [round(getattr(result, name), 5) for name in FIELDS]
