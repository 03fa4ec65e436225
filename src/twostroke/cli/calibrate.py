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
from twostroke.simulator.calibration.calibration_options import CalibrationOptions

if TYPE_CHECKING:
    from twostroke.engine.engine import Engine
    from twostroke.simulator.calibration.calibration_steps import Measurement
    from twostroke.simulator.calibration.machine_speed import Probe

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
    """Measure short steps of the live engine on this machine, and fit the simulator's coefficients
    to them.

    Use the file with `twostroke simulate --gpu cpu --efficiencies FILE`, on the same model best.
    Nothing else should run meanwhile.

    Args:
        model: `pilot` (embedded, the default), a local folder, or a Hugging Face Hub id; the same
            as --model.
    """
    from twostroke.model_spec.model_files import resolve_model
    from twostroke.model_spec.model_reader import read_model
    from twostroke.server.version import package_version
    from twostroke.simulator.calibration.calibrate import as_toml
    from twostroke.simulator.calibration.calibrate import calibrate as fit
    from twostroke.simulator.calibration.calibration_steps import steps_csv
    from twostroke.simulator.calibration.measured_on import MeasuredOn, as_text, processor_name
    from twostroke.simulator.cost.efficiencies import load_efficiencies
    from twostroke.simulator.cost.hardware_sheet import load_hardware
    from twostroke.startup import load_engine, make_speed_probe

    options = calibration or CalibrationOptions()
    if not options.output.parent.is_dir():
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
        measured = watched(engine, options.rounds, probe, probe.keep_busy)
    finally:
        engine.close()
    found = fit(measured.steps, hardware, sheet, start, weights=weights)
    source = (
        f"twostroke calibrate on {platform.node() or '?'}: {config.model.model}, {hardware.name},"
        f" {weights}"
    )
    on = MeasuredOn(
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
    write(options.output, as_toml(found, source, measured.speed, on), "--output")
    if options.steps is not None:
        write(options.steps, steps_csv(measured.steps, found.estimates), "--steps")
    print(f"measured on {on.describe()}", file=sys.stderr)
    print(
        f"median error {found.median_error:.1%} over {len(found.estimates)} kinds of steps; wrote"
        f" {options.output}"
    )


def watched(
    engine: Engine, rounds: int, probe: Probe, wait: Callable[[float], None]
) -> Measurement:
    """``measure``, with a progress bar on stderr, and what came of it."""
    from rich.console import Console
    from rich.progress import Progress

    from twostroke.simulator.calibration.calibration_steps import SCENES, measure

    console = Console(stderr=True)
    with Progress(
        console=console, disable=not console.is_terminal, refresh_per_second=2
    ) as progress:
        task = progress.add_task("measuring", total=rounds * len(SCENES))
        measured = measure(
            engine, rounds, lambda done: progress.update(task, completed=done), probe, wait
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
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"cannot write {path}: {error.strerror}", hint=f"give another {flag}"
        ) from error
