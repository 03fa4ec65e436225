"""``twostroke simulate``."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from cyclopts import Group, Parameter

from twostroke.cli.flags import CacheFlags, SchedulerFlags, shown_default
from twostroke.core.config import CacheConfig, SchedulerConfig
from twostroke.core.errors import ConfigError
from twostroke.simulator.fleet.options import DeploymentOptions, OutputOptions
from twostroke.simulator.workloads.options import SimulatedWorkloadOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from twostroke.observability.recorder import Recorder
    from twostroke.simulator.scenario import Run, Scenario


def _section(title: str, order: int) -> Parameter:
    return Parameter(
        name="*",
        group=Group(title, sort_key=order),
        negative_iterable=(),
        show_default=shown_default,
    )


DeploymentFlags = Annotated[DeploymentOptions, _section("Deployment", 0)]
WorkloadFlags = Annotated[SimulatedWorkloadOptions, _section("Workload", 1)]
OutputFlags = Annotated[OutputOptions, _section("Output", 2)]


def simulate(
    model: str | None = None,
    /,
    *,
    deployment: DeploymentFlags | None = None,
    workload: WorkloadFlags | None = None,
    output: OutputFlags | None = None,
    scheduler: SchedulerFlags | None = None,
    cache: CacheFlags | None = None,
) -> None:
    """Ask how MODEL would serve a workload on other hardware: the engine's own scheduler on a
    virtual clock.

    The report goes to stdout, progress to stderr. Ctrl-C ends the simulation and reports what there
    is.

    Args:
        model: A public model by name, a config.json or its folder, or pilot; the same as --model.
    """
    deployment, output = deployment or DeploymentOptions(), output or OutputOptions()
    if model is not None and output.compare_only:
        raise ConfigError(
            f"--compare-only simulates nothing, and so not {model}",
            hint="give --compare before each report",
        )
    if model is not None:
        if deployment.model not in (model, DeploymentOptions().model):
            raise ConfigError(
                f"MODEL is {model}, but --model is {deployment.model}", hint="give the model once"
            )
        deployment = replace(deployment, model=model)
    from twostroke.simulator.scenario import Scenario

    scenario = Scenario(
        deployment=deployment,
        workload=workload or SimulatedWorkloadOptions(),
        scheduler=scheduler or SchedulerConfig(),
        cache=cache or CacheConfig(),
        targets=output.targets(),
    )
    report(scenario, output)


def report(scenario: Scenario, output: OutputOptions) -> None:
    """Run what was asked for, beside earlier reports, and show and write it all."""
    from twostroke.simulator.reports.comparison import notes_of, print_comparison
    from twostroke.simulator.reports.earlier import read_report
    from twostroke.simulator.reports.report import print_run
    from twostroke.simulator.scenario import fitting, sweep

    scenarios = sweep(scenario, output.sweep)
    for flag, value in (("--record", output.record), ("--metrics", output.metrics)):
        if value is not None and len(scenarios) > 1:
            raise ConfigError(
                f"{flag} is of one run, not of a sweep", hint="leave out one of the two"
            )
    refuse_to_overwrite(
        recordings(output.record, scenario.deployment.replicas), scenario.workload.trace_path
    )
    earlier = [run for path in output.compare for run in read_report(path)]
    if output.compare_only:
        print_comparison(earlier, sys.stdout)
        write_files([], earlier, earlier, output)
        return
    scenarios, left_out = fitting(scenarios)
    runs, own, interrupted = run_all(scenarios, output)
    here = [note for run in runs for note in _other_machine(run)]
    for note in dict.fromkeys([*left_out, *notes_of(own), *here]):
        print(f"note: {note}", file=sys.stderr)
    if interrupted:
        print("interrupted: this is what there is so far", file=sys.stderr)
    fields = [*earlier, *own]
    if len(runs) == 1:
        print_run(runs[0], sys.stdout)
    if len(fields) > 1:
        print_comparison(fields, sys.stdout)
    write_files(runs, own, fields, output)


def _other_machine(run: Run) -> Iterator[str]:
    """Said here and not in the report, which is the same wherever it is made."""
    from twostroke.simulator.calibration.measured_on import processor_name

    deployment = run.deployment
    measured = deployment.cost.efficiencies.measured
    if (
        measured
        and measured.machine
        and deployment.hardware.is_cpu
        and measured.machine != (here := processor_name())
    ):
        yield (
            f"these times are of another machine, {measured.machine}; this one is {here} (twostroke"
            " calibrate)"
        )


def run_all(
    scenarios: list[Scenario], output: OutputOptions
) -> tuple[list[Run], list[dict[str, object]], bool]:
    """One after the other, a progress bar on stderr meanwhile.

    Returns:
        The runs, those of a sweep without their steps; ``run_fields`` of each; whether Ctrl-C ended
            it before its time.

    Raises:
        KeyboardInterrupt: There is nothing to report yet.
    """
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

    from twostroke.simulator.reports.report import run_fields
    from twostroke.simulator.scenario import count_requests, simulate

    console = Console(stderr=True)
    columns = (*Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn())
    runs: list[Run] = []
    fields: list[dict[str, object]] = []
    recorders: list[Recorder] = []
    try:
        for path in recordings(output.record, scenarios[0].deployment.replicas):
            recorders.append(new_recorder(path))
        with Progress(
            *columns, console=console, disable=not console.is_terminal, refresh_per_second=4
        ) as progress:
            for scenario in scenarios:
                name = scenario.label or scenario.deployment.model
                task = progress.add_task(name, total=count_requests(scenario, output.interval))
                run = simulate(
                    scenario,
                    interval=output.interval,
                    jump=output.jump,
                    recorders=recorders,
                    progress=lambda ended: progress.advance(task, ended),  # noqa: B023 - called in this turn only
                )
                fields.append(run_fields(run))
                runs.append(run if len(scenarios) == 1 else run.without_steps())
                if run.result.interrupted:
                    return runs, fields, True
    except KeyboardInterrupt:  # between two runs, or while one was prepared or summed up
        if not runs:
            raise
        return runs, fields[: len(runs)], True
    finally:
        for recorder in recorders:
            recorder.close()
    return runs, fields, False


def recordings(path: Path | None, replicas: int) -> list[Path]:
    """One file for each replica; the name as it was given if there is one."""
    if path is None:
        return []
    return (
        [path]
        if replicas == 1
        else [path.with_suffix(f".{n}{path.suffix}") for n in range(replicas)]
    )


def refuse_to_overwrite(recordings: list[Path], trace: Path | None) -> None:
    """A recording empties its file first: not the one that is replayed. Raises ConfigError."""
    if trace is not None and any(path.resolve() == trace.resolve() for path in recordings):
        raise ConfigError(
            f"--record would overwrite --trace-path {trace}", hint="give another --record"
        )


def new_recorder(path: Path) -> Recorder:
    """It begins with an empty file: two simulations behind each other would be steps with the same
    numbers.
    """
    from twostroke.observability.recorder import Recorder

    try:
        path.write_bytes(b"")
    except OSError as error:
        raise ConfigError(
            f"cannot write {path}: {error.strerror}", hint="give another --record"
        ) from error
    return Recorder(1, path)


def write_files(
    runs: list[Run],
    own: list[dict[str, object]],
    fields: list[dict[str, object]],
    output: OutputOptions,
) -> None:
    """What was asked for, where it was asked for."""
    from twostroke.simulator.reports.html import report_html
    from twostroke.simulator.reports.report import report_json, requests_csv
    from twostroke.simulator.results.prometheus import render_metrics

    texts: tuple[tuple[Path | None, Callable[[], str]], ...] = (
        (output.output_json, lambda: report_json(own)),
        (output.output_html, lambda: report_html(fields)),
        (output.output_csv, lambda: requests_csv(runs)),
        (output.metrics, lambda: render_metrics(runs[-1])),
    )
    for path, make in texts:
        if path is not None:
            try:
                path.write_text(make(), encoding="utf-8")
            except OSError as error:
                raise ConfigError(
                    f"cannot write {path}: {error.strerror}", hint="give another file"
                ) from error
