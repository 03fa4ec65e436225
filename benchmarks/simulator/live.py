"""Measures the live engine beside the simulator: five workloads that no calibration has seen.

    python -m benchmarks.simulator.live pilot /path/to/350m   measure, write docs/validation/live.md
    python -m benchmarks.simulator.live                       write it from the last measurement
    python -m benchmarks.simulator.live --refit               after a change to the cost model

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
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.environment import OtherPrograms
from benchmarks.simulator import live_report
from benchmarks.simulator.environment import engine_environment, environment
from benchmarks.simulator.live_player import LivePlayer
from benchmarks.simulator.live_record import (
    calibrated_speed,
    load_kept,
    row_of,
    save_kept,
    short_name,
    suited_pace,
)
from benchmarks.simulator.live_runs import LiveRun, counted_runs, watched_run
from benchmarks.simulator.live_workloads import WARM_UP, workloads
from twostroke.core.config import EngineConfig, ModelOptions, ObservabilityConfig
from twostroke.model_spec.model_files import resolve_model
from twostroke.model_spec.public_models import find_model
from twostroke.simulator.calibration.calibrate import fit_coefficients
from twostroke.simulator.calibration.efficiencies_file import as_toml
from twostroke.simulator.calibration.machine_speed import Speed
from twostroke.simulator.calibration.measuring import measured_steps, steps_csv
from twostroke.simulator.cost.efficiencies import load_efficiencies
from twostroke.simulator.cost.hardware_sheet import load_hardware
from twostroke.simulator.cost.measured_on import MeasuredOn
from twostroke.simulator.workloads.make import make_workload
from twostroke.simulator.workloads.options import SimulatedWorkloadOptions as Options

# More steps than any run of a workload has.
KEPT_EVENTS = 100_000


def calibrate(model: str, rounds: int) -> dict[str, Any]:
    """What ``twostroke calibrate`` finds, and every kind of step that it has measured."""
    with TemporaryDirectory() as folder:
        file, steps = Path(folder) / "efficiencies.toml", Path(folder) / "steps.csv"
        command = [sys.executable, "-m", "twostroke", "calibrate", model]
        outputs = ["--output", str(file), "--steps", str(steps)]
        subprocess.run([*command, *outputs, "--rounds", str(rounds)], check=True)
        return {
            "model": model,
            "efficiencies": file.read_text(),
            "steps": steps.read_text(),
            "workloads": {},
        }


def refit(measured: dict[str, Any], folder: Path, starts: int = 8) -> str:
    """The coefficients that a kept calibration would have measured with today's cost model.

    They are fitted anew to its steps; ``measured`` gets the new estimates of them.
    """
    file = folder / "config.json"
    file.write_text(json.dumps(measured["config"]), encoding="utf-8")
    sheet, hardware = find_model(str(file)), load_hardware("cpu")
    steps, start = measured_steps(measured["steps"]), load_efficiencies("cpu")
    fitted = fit_coefficients(steps, hardware, sheet, start, weights=sheet.format, starts=starts)
    measured["steps"] = steps_csv(fitted.steps, fitted.estimates)
    kept = tomllib.loads(measured["efficiencies"])
    speed = Speed(**kept["speed"]) if "speed" in kept else None
    return as_toml(
        fitted,
        kept["source"],
        speed,
        MeasuredOn(**kept["measured"]) if "measured" in kept else None,
    )


def measure(
    measured: dict[str, Any],
    repeats: int,
    save: Callable[[], None],
    record: Path | None = None,
    let_sleep: bool = False,
) -> None:
    """Run every workload live, on a model that has been calibrated; into ``measured``.

    Args:
        repeats: Undisturbed runs of each that are wanted (``live_runs.counted_runs``).
        record: A folder for the step events of each workload, to see where live and simulated part.
        let_sleep: Let the machine sleep while there is no request.
    """
    from twostroke.startup import load_engine, make_speed_probe

    model, usual = measured["model"], calibrated_speed(measured)
    # Kept, so that a report needs no checkpoint.
    measured["config"] = json.loads(
        (resolve_model(model) / "config.json").read_text(encoding="utf-8")
    )
    observed = ObservabilityConfig(step_events=KEPT_EVENTS) if record else ObservabilityConfig()
    engine = load_engine(EngineConfig(model=ModelOptions(model=model), observability=observed))
    info, probe = engine.info, make_speed_probe("cpu")
    measured["kv_cache_memory"] = info.num_blocks * info.block_size * info.kv_bytes_per_token
    try:
        LivePlayer(engine, make_workload(WARM_UP).workload, "warm-up").run()
        pace = suited_pace(measured)
        # What ran at another pace has no double in the simulator any more.
        if measured.get("pace") != asdict(pace):
            measured["pace"], measured["workloads"], measured["states"] = asdict(pace), {}, {}
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
            measured["workloads"][name] = [
                [row_of(result) for result in run.results] for run in runs
            ]
            measured.setdefault("states", {})[name] = [run.state() for run in runs]
            save()
            print(f"{model}, {name}: done; {[run.state() for run in runs]}", file=sys.stderr)
    finally:
        engine.close()


def update(
    models: Sequence[str],
    repeats: int = 2,
    keep_calibration: bool = False,
    record: Path | None = None,
    let_sleep: bool = False,
    rounds: int = 3,
) -> Path | None:
    """Measure these models, and write the report on all that were ever measured.

    Returns its path; ``None`` if nothing has been measured yet.
    """
    kept = load_kept()

    def save() -> None:
        kept["models"][name]["others_cpu_share"] = other_programs.share()
        save_kept(kept)

    for model in models:
        name, other_programs = short_name(model), OtherPrograms()
        if not keep_calibration:
            kept["models"][name] = calibrate(model, rounds)
        how = "--keep-calibration" if keep_calibration else f"--rounds {rounds}"
        command = f"python -m benchmarks.simulator.live {name} --repeats {repeats} {how}"
        kept["models"][name] |= {
            "let_sleep": let_sleep,
            "made": f"`{command}`, {engine_environment()}",
        }
        save()
        measure(kept["models"][name], repeats, save, record, let_sleep)
    return live_report.write(kept) if kept["models"] else None


def refit_all() -> None:
    """``refit`` of every kept calibration, in place."""
    kept = load_kept()
    with TemporaryDirectory() as folder:
        for measured in kept["models"].values():
            measured["efficiencies"] = refit(measured, Path(folder))
            measured["refitted"] = environment()
    save_kept(kept)


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
