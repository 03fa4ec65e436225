"""Measures the live engine on this machine beside the simulator: five workloads that the
calibration has not seen.

    python -m benchmarks.simulator.live pilot /path/to/350m      measures and writes
    docs/validation/live.md python -m benchmarks.simulator.live                          writes it
    again from what was measured last python -m benchmarks.simulator.live --refit
    the same, after a change to the cost model

For each model: ``twostroke calibrate``, then every workload on the engine in this process, requests
in real time; then the same requests in the simulator, from the coefficients alone. Nothing else
should run meanwhile. A measurement is kept in ``benchmarks/results/live_engine.json``, every
request of it, so that the report can be made anew without one.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.claims.report import Others
from benchmarks.simulator.data import ROOT
from benchmarks.simulator.live_player import LivePlayer
from benchmarks.simulator.live_runs import LiveRun, counted_runs, watched_run
from benchmarks.simulator.live_workloads import SATURATING, WARM_UP, Pace, workloads
from twostroke.core.config import CacheConfig, EngineConfig, ModelOptions, ObservabilityConfig
from twostroke.model_spec.model_files import resolve_model
from twostroke.model_spec.public_models import find_model
from twostroke.simulator.calibration.calibrate import fit_coefficients
from twostroke.simulator.calibration.efficiencies_file import as_toml
from twostroke.simulator.calibration.machine_speed import Speed
from twostroke.simulator.calibration.measuring import measured_steps, steps_csv
from twostroke.simulator.cost.efficiencies import load_efficiencies
from twostroke.simulator.cost.hardware_sheet import load_hardware
from twostroke.simulator.cost.measured_on import MeasuredOn
from twostroke.simulator.deployment.options import DeploymentOptions
from twostroke.simulator.fleet.fleet import RequestResult
from twostroke.simulator.scenario import Scenario
from twostroke.simulator.simulate import simulate
from twostroke.simulator.workloads.make import make_workload
from twostroke.simulator.workloads.options import SimulatedWorkloadOptions as Options

RESULTS = ROOT / "benchmarks" / "results" / "live_engine.json"
# More steps than any run of a workload has.
KEPT_EVENTS = 100_000
# What is kept of a request: seconds since the workload began, and tokens.
FIELDS = ("number", "arrival", "first_token", "finish", "prompt_tokens", "output_tokens")


def calibrate(model: str, rounds: int) -> dict[str, Any]:
    """What ``twostroke calibrate`` finds, and every kind of step that it has measured."""
    with TemporaryDirectory() as folder:
        file, steps = Path(folder) / "efficiencies.toml", Path(folder) / "steps.csv"
        command = [
            sys.executable,
            "-m",
            "twostroke",
            "calibrate",
            model,
            "--output",
            str(file),
            "--steps",
            str(steps),
        ]
        command += ["--rounds", str(rounds)]
        subprocess.run(command, check=True)
        return {
            "model": model,
            "efficiencies": file.read_text(),
            "steps": steps.read_text(),
            "workloads": {},
        }


def refit(found: dict[str, Any], folder: Path, starts: int = 8) -> str:
    """Coefficients fitted anew to the steps of a kept calibration: what it would have found with
    today's cost model.
    """
    file = folder / "config.json"
    file.write_text(json.dumps(found["config"]), encoding="utf-8")
    sheet, hardware = find_model(str(file)), load_hardware("cpu")
    steps, start = measured_steps(found["steps"]), load_efficiencies("cpu")
    fitted = fit_coefficients(steps, hardware, sheet, start, weights=sheet.format, starts=starts)
    found["steps"] = steps_csv(fitted.steps, fitted.estimates)
    kept = tomllib.loads(found["efficiencies"])
    speed = Speed(**kept["speed"]) if "speed" in kept else None
    return as_toml(
        fitted,
        kept["source"],
        speed,
        MeasuredOn(**kept["measured"]) if "measured" in kept else None,
    )


def measure(
    found: dict[str, Any],
    repeats: int,
    save: Callable[[], None],
    record: Path | None = None,
    let_sleep: bool = False,
) -> None:
    """Run every workload live, on a model that has been calibrated; into ``found``.

    Args:
        repeats: Undisturbed runs of each that are wanted (``live_runs.counted_runs``).
        record: A folder for the step events of each workload, to see where live and simulated part.
        let_sleep: Let the machine sleep while there is no request.
    """
    from twostroke.startup import load_engine, make_speed_probe

    model, usual = found["model"], calibrated_speed(found)
    # Kept, so that a report needs no checkpoint.
    found["config"] = json.loads((resolve_model(model) / "config.json").read_text(encoding="utf-8"))
    observed = ObservabilityConfig(step_events=KEPT_EVENTS) if record else ObservabilityConfig()
    engine = load_engine(EngineConfig(model=ModelOptions(model=model), observability=observed))
    info, probe = engine.info, make_speed_probe("cpu")
    found["kv_cache_memory"] = info.num_blocks * info.block_size * info.kv_bytes_per_token
    try:
        LivePlayer(engine, make_workload(WARM_UP).workload, "warm-up").run()
        pace = suited_pace(found)
        if found.get("pace") != asdict(
            pace
        ):  # what was run at another one has no double in the simulator any more
            found["pace"], found["workloads"], found["states"] = asdict(pace), {}, {}
        for name, options in workloads(pace).items():

            def run(attempt: int, name: str = name, options: Options = options) -> LiveRun:
                workload, seed = make_workload(options).workload, f"{name} {attempt}"
                made = watched_run(engine, workload, seed, probe, usual, let_sleep=let_sleep)
                if record is not None:
                    events = engine.recorder.events(made.steps[0] - 1)
                    lines = b"\n".join(event.to_json() for event in events)
                    (record / f"{short_name(model)}, {seed}.jsonl").write_bytes(lines)
                return made

            runs = counted_runs(run, held=usual.held, wanted=repeats)
            found["workloads"][name] = [[_row(result) for result in run.results] for run in runs]
            found.setdefault("states", {})[name] = [run.state() for run in runs]
            save()
            print(f"{model}, {name}: done; {[run.state() for run in runs]}", file=sys.stderr)
    finally:
        engine.close()


def suited_pace(measured: dict[str, Any]) -> Pace:
    """From the most chats a second that the simulator says are possible: the same load on any
    machine.
    """
    with TemporaryDirectory() as folder:
        results = simulate(scenario(measured, SATURATING, Path(folder))).result.requests
    return Pace.suited(len(results) / max(result.finish for result in results))


def scenario(measured: dict[str, Any], workload: Options, folder: Path) -> Scenario:
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


def calibrated_speed(found: dict[str, Any]) -> Speed:
    """The machine's speed when the model was calibrated."""
    kept = tomllib.loads(found["efficiencies"])
    if "speed" not in kept:
        raise SystemExit(
            "the kept calibration does not say at which speed it was made: calibrate anew"
        )
    return Speed(**kept["speed"])


def short_name(model: str) -> str:
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


def _row(result: RequestResult) -> list[float]:
    return [round(getattr(result, name), 5) for name in FIELDS]


def update(
    models: Sequence[str],
    repeats: int = 2,
    keep_calibration: bool = False,
    record: Path | None = None,
    let_sleep: bool = False,
    rounds: int = 3,
) -> Path | None:
    """Measure these models and write the report; of others, from what was measured last. ``None``
    if there is none.
    """
    from benchmarks.simulator import live_report

    kept: dict[str, Any] = (
        json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.is_file() else {"models": {}}
    )

    def save() -> None:
        kept["models"][name]["others_cpu_share"] = others.share()
        RESULTS.write_text(json.dumps(kept) + "\n", encoding="utf-8")

    for model in models:
        name, others = short_name(model), Others()
        if not keep_calibration:
            kept["models"][name] = calibrate(model, rounds)
        how = "--keep-calibration" if keep_calibration else f"--rounds {rounds}"
        command = f"python -m benchmarks.simulator.live {name} --repeats {repeats} {how}"
        kept["models"][name] |= {
            "let_sleep": let_sleep,
            "made": f"`{command}`, {live_report.environment()}",
        }
        save()
        measure(kept["models"][name], repeats, save, record, let_sleep)
    return live_report.write(kept) if kept["models"] else None


def refit_all() -> None:
    """``refit`` of every kept calibration, in place."""
    from benchmarks.simulator.validate import environment

    kept: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8"))
    with TemporaryDirectory() as folder:
        for found in kept["models"].values():
            found["efficiencies"] = refit(found, Path(folder))
            found["refitted"] = environment()
    RESULTS.write_text(json.dumps(kept) + "\n", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "models", nargs="*", help="pilot, or a checkpoint of benchmarks/make_checkpoint.py"
    )
    parser.add_argument(
        "--repeats", type=int, default=2, help="undisturbed live runs of each workload"
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=3,
        help="of the calibration; more where the speed does not hold",
    )
    parser.add_argument(
        "--keep-calibration", action="store_true", help="run the workloads on the last one"
    )
    parser.add_argument(
        "--record", type=Path, help="a folder for the steps of every workload (JSON lines)"
    )
    parser.add_argument(
        "--refit",
        action="store_true",
        help="fit anew to the steps of the calibrations that are kept",
    )
    parser.add_argument(
        "--let-sleep", action="store_true", help="do not keep the cores busy between two requests"
    )
    options = parser.parse_args()
    if options.refit:
        refit_all()
    path = update(
        options.models,
        options.repeats,
        options.keep_calibration,
        options.record,
        options.let_sleep,
        options.rounds,
    )
    if path is None:
        print("skipped: nothing has been measured yet; name the models", file=sys.stderr)
    else:
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
