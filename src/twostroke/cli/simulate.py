"""``twostroke simulate``."""

from __future__ import annotations

import re
import sys
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated

from cyclopts import Group, Parameter

from twostroke.cli.flags import CacheFlags, SchedulerFlags, TierFlags, shown_default
from twostroke.core.config import CacheConfig, SchedulerOptions
from twostroke.core.errors import ConfigError
from twostroke.core.files import write_text
from twostroke.core.kv_tier_config import KVTierConfig
from twostroke.simulator.deployment.options import DeploymentOptions
from twostroke.simulator.reports.options import OutputOptions
from twostroke.simulator.workloads.options import SimulatedWorkloadOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from twostroke.observability.fleet_file import FleetRecorder
    from twostroke.observability.metrics import EngineMetrics
    from twostroke.observability.observer import Observer
    from twostroke.observability.recorder import Recorder
    from twostroke.observability.targets.observer import TargetObserver
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
    tiers: TierFlags | None = None,
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
    from twostroke.core.targets import parse_targets
    from twostroke.simulator.scenario import Scenario

    scenario = Scenario(
        deployment=deployment,
        workload=workload or SimulatedWorkloadOptions(),
        scheduler=scheduler or SchedulerOptions(),
        cache=cache or CacheConfig(),
        tiers=tiers or KVTierConfig(),
        targets=output.targets(),
        watched=parse_targets(output.target),
    )
    if output.inspect:
        report_and_show(scenario, output)
    else:
        report(scenario, output)


def report_and_show(scenario: Scenario, output: OutputOptions) -> None:
    """Report on a run, then show the page over its steps until Ctrl-C."""
    from pathlib import Path
    from tempfile import TemporaryDirectory

    from twostroke.cli.inspect import show
    from twostroke.inspector.fleet.recorded_fleet import MAX_SHOWN
    from twostroke.inspector.report import report_router
    from twostroke.server.options import ServerOptions
    from twostroke.simulator.cost.shown_costs import facts_of_simulation
    from twostroke.simulator.scenario import deploy_scenario

    deployment = scenario.deployment
    if deployment.replicas > MAX_SHOWN:
        raise ConfigError(
            f"--inspect shows {MAX_SHOWN} replicas at most, not {deployment.replicas}",
            hint="give --record, and open some of its files with twostroke inspect",
        )
    with TemporaryDirectory(prefix="twostroke-") as folder:
        path = output.record or Path(folder) / "steps.jsonl"
        fields = report(scenario, replace(output, record=path))
        _, deployed = deploy_scenario(scenario)
        scheduler = deployed.scheduler
        facts = facts_of_simulation(deployment.model, deployed.cost, notes=deployed.notes)
        configuration = {
            "max_num_seqs": scheduler.max_num_seqs,
            "max_num_batched_tokens": scheduler.max_num_batched_tokens,
            "max_prefill_chunk": scheduler.max_prefill_chunk,
            "policy": scheduler.policy,
        }
        if deployment.replicas > 1:
            path = fleet_file(path)
        options = ServerOptions(port=0)
        routes = [report_router(fields)]
        show(path, "simulation", deployment.model, options, configuration, facts, routes)


def report(scenario: Scenario, output: OutputOptions) -> list[dict[str, object]]:
    """Run the scenario or its sweep; print and write the report, beside earlier ones.

    Returns:
        ``run_fields`` of all runs that were shown.
    """
    from twostroke.observability.targets.table import print_targets
    from twostroke.simulator.reports.comparison import notes_of, print_comparison
    from twostroke.simulator.reports.earlier import read_report
    from twostroke.simulator.reports.terminal import print_run
    from twostroke.simulator.sweep import keep_fitting, sweep

    scenarios = sweep(scenario, output.sweep)
    of_one_run = (
        ("--inspect", output.inspect),
        ("--record", output.record),
        ("--metrics", output.metrics),
        ("--target", output.target),
    )
    for flag, value in of_one_run:
        if value and len(scenarios) > 1:
            raise ConfigError(
                f"{flag} is of one run, not of a sweep", hint="leave out one of the two"
            )
    files = recordings(output.record, scenario.deployment.replicas)
    if output.record is not None and len(files) > 1:
        files.append(fleet_file(output.record))
    refuse_to_overwrite(files, scenario.workload.trace_path)
    earlier = [run for path in output.compare for run in read_report(path)]
    if output.compare_only:
        print_comparison(earlier, sys.stdout)
        write_files([], earlier, earlier, output)
        return earlier
    scenarios, left_out = keep_fitting(scenarios)
    metrics = None
    if output.metrics is not None:
        metrics = new_metrics(scenarios[0].deployment.model)
    targets = new_targets(output, scenarios[0].deployment) if output.target else None
    if metrics is not None and targets is not None:
        metrics.show_targets(targets)
    watching: list[Observer] = [observer for observer in (metrics, targets) if observer is not None]
    runs, new, interrupted = run_all(scenarios, output, watching)
    machine_notes = [note for run in runs for note in _other_machine(run)]
    for note in dict.fromkeys([*left_out, *notes_of(new), *machine_notes]):
        print(f"note: {note}", file=sys.stderr)
    if interrupted:
        print("interrupted: this is what there is so far", file=sys.stderr)
    fields = [*earlier, *new]
    if len(runs) == 1:
        print_run(runs[0], sys.stdout)
    if targets is not None:
        print_targets(targets.report(), sys.stdout)
    if len(fields) > 1:
        print_comparison(fields, sys.stdout)
    write_files(runs, new, fields, output, metrics)
    return fields


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
    scenarios: list[Scenario], output: OutputOptions, watching: Sequence[Observer]
) -> tuple[list[Run], list[dict[str, object]], bool]:
    """Run one scenario after the other, with a progress bar on stderr.

    Args:
        watching: Observe all replicas, as if one engine did it all.

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
    with ExitStack() as files:
        recorders, routes = _open_recordings(output, scenarios[0], files)
        progress = files.enter_context(
            Progress(
                *columns, console=console, disable=not console.is_terminal, refresh_per_second=4
            )
        )
        try:
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
                    on_route=None if routes is None else routes.add,
                )
                fields.append(run_fields(run))
                runs.append(run if len(scenarios) == 1 else run.without_steps())
                if run.result.interrupted:
                    return runs, fields, True
        except KeyboardInterrupt:  # between two runs, or while one was prepared or summed up
            if not runs:
                raise
            return runs, fields[: len(runs)], True
    return runs, fields, False


def _open_recordings(
    output: OutputOptions, scenario: Scenario, files: ExitStack
) -> tuple[list[Recorder], FleetRecorder | None]:
    """A recorder for each replica, and one for the routes to several, if they are to be kept."""
    paths = recordings(output.record, scenario.deployment.replicas)
    recorders = [files.enter_context(closing(new_recorder(path))) for path in paths]
    if output.record is None or len(paths) < 2:
        return recorders, None
    routes = new_fleet_recorder(fleet_file(output.record), scenario.deployment.router, paths)
    return recorders, files.enter_context(closing(routes))


def recordings(path: Path | None, replicas: int) -> list[Path]:
    """One file for each replica; the path itself if there is one replica."""
    if path is None:
        return []
    return (
        [path]
        if replicas == 1
        else [path.with_suffix(f".{n}{path.suffix}") for n in range(replicas)]
    )


def fleet_file(path: Path) -> Path:
    """The file that names the recordings of all replicas, and says where requests went."""
    return path.with_suffix(f".fleet{path.suffix}")


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
        write_text(path, "")
    except OSError as error:
        raise ConfigError(
            f"cannot write {path}: {error.strerror}", hint="give another --record"
        ) from error
    return Recorder(1, path)


def new_fleet_recorder(path: Path, router: str, recordings: list[Path]) -> FleetRecorder:
    from twostroke.observability.fleet_file import FleetRecorder

    return FleetRecorder(path, router, recordings)


def new_metrics(model: str) -> EngineMetrics:
    from twostroke.observability.metrics import EngineMetrics

    return EngineMetrics(model)


def new_targets(output: OutputOptions, deployment: DeploymentOptions) -> TargetObserver:
    """What holds a run to ``--target``, at the time of the last step.

    Raises:
        ConfigError: There are several replicas, whose queues and caches are not one.
    """
    from twostroke.core.targets import parse_targets
    from twostroke.observability.events import SchedulerStats
    from twostroke.observability.targets.observer import TargetObserver

    if deployment.replicas > 1:
        raise ConfigError(
            f"--target watches one replica, not {deployment.replicas}",
            hint="leave out --replicas, or give --slo",
        )
    targets = parse_targets(output.target)
    return TargetObserver(targets, deployment.model, lambda: 0.0, SchedulerStats)


def metrics_text(metrics: EngineMetrics, run: Run) -> str:
    """What the live server's ``/metrics`` would say at the end of the run.

    Without the ``_created`` series: they hold the time of day, and equal runs give equal files.
    """
    result = run.result
    metrics.describe_cache(result.total_blocks, result.block_size, run.scenario.cache)
    text = metrics.render()[0].decode()
    return re.sub(r"^(# (HELP|TYPE) )?[\w:]+_created[ {].*\n", "", text, flags=re.MULTILINE)


def page_text(fields: list[dict[str, object]]) -> str:
    """The inspector's page of these runs, as one file."""
    from twostroke.inspector.report import report_page

    return report_page(fields)


def write_files(
    runs: list[Run],
    new: list[dict[str, object]],
    fields: list[dict[str, object]],
    output: OutputOptions,
    metrics: EngineMetrics | None = None,
) -> None:
    """Write the files that the flags name. ``new`` are the fields of ``runs``."""
    from twostroke.simulator.reports.fields import report_json, requests_csv

    texts: tuple[tuple[Path | None, Callable[[], str]], ...] = (
        (output.output_json, lambda: report_json(new)),
        (output.output_html, lambda: page_text(fields)),
        (output.output_csv, lambda: requests_csv(runs)),
        (output.metrics, lambda: "" if metrics is None else metrics_text(metrics, runs[-1])),
    )
    for path, make in texts:
        if path is not None:
            try:
                write_text(path, make())
            except OSError as error:
                raise ConfigError(
                    f"cannot write {path}: {error.strerror}", hint="give another file"
                ) from error
