"""``twostroke calibrate``."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Group, Parameter

from twostroke.cli.flags import CacheFlags, ModelFlags, SchedulerFlags, engine_config
from twostroke.core.errors import ConfigError
from twostroke.core.files import is_folder, reason, write_text
from twostroke.simulator.calibration.options import CalibrationOptions

if TYPE_CHECKING:
    from twostroke.engine.llm_engine import LLMEngine
    from twostroke.simulator.calibration.calibrate import Calibration
    from twostroke.simulator.calibration.machine_speed import Probe
    from twostroke.simulator.calibration.measuring import Measurement
    from twostroke.simulator.cost.measured_on import MeasuredOn

CalibrationFlags = Annotated[
    CalibrationOptions, Parameter(name="*", group=Group("Calibration", sort_key=0))
]


def calibrate(
    model: str | None = None,
    /,
    *,
    calibration: CalibrationFlags | None = None,
    model_options: ModelFlags | None = None,
    cache: CacheFlags | None = None,
    scheduler: SchedulerFlags | None = None,
) -> None:
    """Fit the simulator to this machine, by timing short steps of the live engine.

    Use the file with `twostroke simulate --gpu cpu --efficiencies FILE`, best with the same model.
    Nothing else should run meanwhile.

    Args:
        model: `pilot` (embedded, the default), a local folder or GGUF file, or a Hugging Face Hub
            id; the same as --model.
    """
    from twostroke.model_spec.model_files import resolve_model
    from twostroke.model_spec.reader import read_model
    from twostroke.server.version import package_version
    from twostroke.simulator.calibration.calibrate import fit_coefficients
    from twostroke.simulator.cost.efficiencies import load_efficiencies
    from twostroke.simulator.cost.hardware_sheet import load_hardware
    from twostroke.simulator.cost.measured_on import MeasuredOn, as_text, processor_name
    from twostroke.startup import load_engine, make_speed_probe

    options = calibration or CalibrationOptions()
    if not is_folder(options.output.parent):
        raise ConfigError(
            f"{options.output.parent} is no folder", hint="make it, or give another --output"
        )
    hardware = load_hardware(options.gpu)
    start = load_efficiencies(hardware.name, link=hardware.link_kind)
    config = engine_config(model, model_options, cache, scheduler)
    sheet = read_model(resolve_model(config.model.model, config.model.revision))
    weights = options.weight_format(config.model.dtype, sheet.format, config.model.quantization)
    engine = load_engine(config)
    try:
        probe = make_speed_probe(config.model.device)
        measured = measure_with_progress(engine, options.rounds, probe, probe.keep_busy)
    finally:
        engine.close()
    fitted = fit_coefficients(measured.steps, hardware, sheet, start, weights=weights)
    source = (
        f"twostroke calibrate on {platform.node() or '?'}: {config.model.model}, {hardware.name},"
        f" {weights}"
    )
    machine = MeasuredOn(
        machine=as_text(probe.gpu or processor_name()),
        device=hardware.name,
        threads=probe.threads,
        model=as_text(config.model.model),
        parameters=sheet.num_parameters,
        weights=weights,
        twostroke=package_version(),
        torch=probe.torch,
        date=datetime.now(UTC).date().isoformat(),
    )
    write_results(options, fitted, source, measured, machine)


def write_results(
    options: CalibrationOptions,
    fitted: Calibration,
    source: str,
    measured: Measurement,
    machine: MeasuredOn,
) -> None:
    """Write the files of ``options``, and print where they are and how well the fit agrees."""
    from twostroke.simulator.calibration.efficiencies_file import as_toml
    from twostroke.simulator.calibration.measuring import steps_csv

    write(options.output, as_toml(fitted, source, measured.speed, machine), "--output")
    if options.steps is not None:
        write(options.steps, steps_csv(measured.steps, fitted.estimates), "--steps")
    print(f"measured on {machine.describe()}", file=sys.stderr)
    print(
        f"median error {fitted.median_error:.1%} over {len(fitted.estimates)} kinds of steps; wrote"
        f" {options.output}"
    )


def measure_with_progress(
    engine: LLMEngine, rounds: int, probe: Probe, wait: Callable[[float], None]
) -> Measurement:
    """``measure`` with a progress bar on stderr, and a line on how steady the machine was."""
    from rich.console import Console
    from rich.progress import Progress

    from twostroke.simulator.calibration.measuring import measure
    from twostroke.simulator.calibration.scenes import SCENES

    console = Console(stderr=True)
    with Progress(
        console=console, disable=not console.is_terminal, refresh_per_second=2
    ) as progress:
        task = progress.add_task("measuring", total=rounds * len(SCENES))
        measured = measure(
            engine, rounds, lambda num_done: progress.update(task, completed=num_done), probe, wait
        )
    print(f"measured {len(measured.steps)} kinds of steps; fitting", file=sys.stderr)
    if measured.speed is not None and not measured.speed.held:
        print(
            "the machine's speed does not hold: every run counts, and what steps take on average",
            file=sys.stderr,
        )
    elif measured.left_out:
        left_out = (
            f"{measured.left_out} of {measured.runs} runs were made at another speed and do not"
            " count"
        )
        print(f"the machine's speed changed: {left_out}", file=sys.stderr)
    return measured


def write(path: Path, text: str, flag: str) -> None:
    """Write a file; raises ConfigError that names the flag."""
    try:
        write_text(path, text)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"cannot write {path}: {reason(error)}", hint=f"give another {flag}"
        ) from error
