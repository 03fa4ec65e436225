"""``twostroke simulate``."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated

from cyclopts import Group, Parameter

from twostroke.cli.flags import CacheFlags, SchedulerFlags, shown_default
from twostroke.core.config import CacheConfig, SchedulerConfig
from twostroke.core.errors import ConfigError
from twostroke.simulator.deployment.options import DeploymentOptions
from twostroke.simulator.reports.options import OutputOptions
from twostroke.simulator.workloads.options import SimulatedWorkloadOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from twostroke.observability.metrics import EngineMetrics
    from twostroke.observability.observer import Observer
    from twostroke.observability.recorder import Recorder
    from twostroke.simulator.results.run import Run
    from twostroke.simulator.scenario import Scenario


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
    """Simulate how MODEL would serve a workload on other hardware.

    The engine's own scheduler runs on a virtual clock. The report goes to stdout, progress to
    stderr. Ctrl-C ends the simulation and reports the requests that finished.

    Example: twostroke simulate llama-3.1-8b --gpu h100 --rate 8 --slo ttft=0.5,tpot=0.05

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
    """Run the scenario or its sweep; print and write the report, beside earlier ones."""
    from twostroke.simulator.reports.comparison import notes_of, print_comparison
    from twostroke.simulator.reports.earlier import read_report
    from twostroke.simulator.reports.terminal import print_run
    from twostroke.simulator.sweep import keep_fitting, sweep

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
    scenarios, left_out = keep_fitting(scenarios)
    metrics = None
    if output.metrics is not None:
        metrics = new_metrics(scenarios[0].deployment.model)
    runs, new, interrupted = run_all(scenarios, output, metrics)
    machine_notes = [note for run in runs for note in _other_machine(run)]
    for note in dict.fromkeys([*left_out, *notes_of(new), *machine_notes]):
        print(f"note: {note}", file=sys.stderr)
    if interrupted:
        print("interrupted: this is what there is so far", file=sys.stderr)
    fields = [*earlier, *new]
    if len(runs) == 1:
        print_run(runs[0], sys.stdout)
    if len(fields) > 1:
        print_comparison(fields, sys.stdout)
    write_files(runs, new, fields, output, metrics)


def _other_machine(run: Run) -> Iterator[str]:
    """A note for stderr; the report is the same on every machine."""
    from twostroke.simulator.cost.measured_on import processor_name

    deployment = run.deployment
    measured = deployment.cost.efficiencies.measured
    if (
        measured
        and measured.machine
        and deployment.hardware.is_cpu
        and measured.machine != (processor := processor_name())
    ):
        yield (
            f"these times are of another machine, {measured.machine}; this one is {processor}"
            " (twostroke calibrate)"
        )


def run_all(
    scenarios: list[Scenario], output: OutputOptions, metrics: EngineMetrics | None
) -> tuple[list[Run], list[dict[str, object]], bool]:
    """Run one scenario after the other, with a progress bar on stderr.

    Args:
        metrics: Observes all replicas, as if one engine did it all.

    Returns:
        The runs, those of a sweep without their steps; ``run_fields`` of each; whether Ctrl-C ended
            the last one early.

    Raises:
        KeyboardInterrupt: Ctrl-C before there was anything to report.
    """
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

    from twostroke.simulator.reports.fields import run_fields
    from twostroke.simulator.simulate import count_requests, simulate

    console = Console(stderr=True)
    columns = (*Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn())
    runs: list[Run] = []
    fields: list[dict[str, object]] = []
    recorders: list[Recorder] = []
    try:
        for path in recordings(output.record, scenarios[0].deployment.replicas):
            recorders.append(new_recorder(path))
        watching: list[Observer] = [] if metrics is None else [metrics]
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
                    observers=[
                        [*recorders[number : number + 1], *watching]
                        for number in range(scenario.deployment.replicas)
                    ],
                    progress=partial(progress.advance, task),
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
    """One file for each replica; the path itself if there is one replica."""
    if path is None:
        return []
    return (
        [path]
        if replicas == 1
        else [path.with_suffix(f".{n}{path.suffix}") for n in range(replicas)]
    )


def refuse_to_overwrite(recordings: list[Path], trace: Path | None) -> None:
    """Raise ConfigError if a recording would empty the trace that is simulated."""
    if trace is not None and any(path.resolve() == trace.resolve() for path in recordings):
        raise ConfigError(
            f"--record would overwrite --trace-path {trace}", hint="give another --record"
        )


def new_recorder(path: Path) -> Recorder:
    """A recorder on an empty file: steps of two simulations would have the same numbers."""
    from twostroke.observability.recorder import Recorder

    try:
        path.write_bytes(b"")
    except OSError as error:
        raise ConfigError(
            f"cannot write {path}: {error.strerror}", hint="give another --record"
        ) from error
    return Recorder(1, path)


def new_metrics(model: str) -> EngineMetrics:
    from twostroke.observability.metrics import EngineMetrics

    return EngineMetrics(model)


def metrics_text(metrics: EngineMetrics, run: Run) -> str:
    """What the live server's ``/metrics`` would say at the end of the run.

    Without the ``_created`` series: they hold the time of day, and equal runs give equal files.
    """
    caching = run.scenario.cache.enable_prefix_caching
    metrics.describe_cache(run.result.total_blocks, run.result.block_size, prefix_caching=caching)
    text = metrics.render()[0].decode()
    return re.sub(r"^(# (HELP|TYPE) )?[\w:]+_created[ {].*\n", "", text, flags=re.MULTILINE)


def write_files(
    runs: list[Run],
    new: list[dict[str, object]],
    fields: list[dict[str, object]],
    output: OutputOptions,
    metrics: EngineMetrics | None = None,
) -> None:
    """Write the files that the flags name. ``new`` are the fields of ``runs``."""
    from twostroke.simulator.reports.fields import report_json, requests_csv
    from twostroke.simulator.reports.html import report_html

    texts: tuple[tuple[Path | None, Callable[[], str]], ...] = (
        (output.output_json, lambda: report_json(new)),
        (output.output_html, lambda: report_html(fields)),
        (output.output_csv, lambda: requests_csv(runs)),
        (output.metrics, lambda: "" if metrics is None else metrics_text(metrics, runs[-1])),
    )
    for path, make in texts:
        if path is not None:
            try:
                path.write_text(make(), encoding="utf-8")
            except OSError as error:
                raise ConfigError(
                    f"cannot write {path}: {error.strerror}", hint="give another file"
                ) from error
