"""Files that ``twostroke simulate`` writes: reports, recordings, metrics."""

from __future__ import annotations

import re
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

from twostroke.core.errors import ConfigError
from twostroke.core.files import write_text

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from twostroke.observability.fleet_file import FleetRecorder
    from twostroke.observability.metrics import EngineMetrics
    from twostroke.observability.recorder import Recorder
    from twostroke.observability.targets.observer import TargetObserver
    from twostroke.simulator.deployment.options import DeploymentOptions
    from twostroke.simulator.reports.options import OutputOptions
    from twostroke.simulator.results.run import Run
    from twostroke.simulator.scenario import Scenario


def open_recordings(
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
