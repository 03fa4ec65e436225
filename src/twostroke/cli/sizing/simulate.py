"""``twostroke simulate``."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated

from twostroke.cli.flags import CacheFlags, SchedulerFlags, TierFlags, flag_section
from twostroke.cli.sizing.simulation_files import (
    fleet_file,
    new_metrics,
    new_targets,
    open_recordings,
    recordings,
    refuse_to_overwrite,
    write_files,
)
from twostroke.core.config import CacheConfig, SchedulerOptions
from twostroke.core.errors import ConfigError, InvalidRequestError
from twostroke.core.kv_tier_config import KVTierConfig
from twostroke.routing.autoscaler import AutoscalerOptions
from twostroke.simulator.deployment.fleet_options import FleetOptions
from twostroke.simulator.deployment.options import DeploymentOptions
from twostroke.simulator.reports.options import OutputOptions
from twostroke.simulator.workloads.options import SimulatedWorkloadOptions

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from twostroke.observability.observer import Observer
    from twostroke.simulator.results.run import Run
    from twostroke.simulator.results.summary import Summary
    from twostroke.simulator.scenario import Scenario


# Exit code of a sweep in which a run is overloaded.
EXIT_OVERLOADED = 3

DeploymentFlags = Annotated[DeploymentOptions, flag_section("Deployment", 0)]
WorkloadFlags = Annotated[SimulatedWorkloadOptions, flag_section("Workload", 1)]
ScalingFlags = Annotated[AutoscalerOptions, flag_section("Autoscaling", 6)]
FleetFlags = Annotated[FleetOptions, flag_section("Pools and failures", 7)]
OutputFlags = Annotated[OutputOptions, flag_section("Output", 2)]


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
    scaling: ScalingFlags | None = None,
    fleet: FleetFlags | None = None,
) -> int:
    """Simulate how MODEL would serve a workload on other hardware.

    The engine's own scheduler runs on a virtual clock. The report goes to stdout, progress to
    stderr. Ctrl-C ends the simulation and reports the requests that finished. Exit code 3: a run of
    a sweep is overloaded.

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
        scaling=scaling or AutoscalerOptions(),
        fleet=fleet or FleetOptions(),
        targets=output.targets(),
        watched=parse_targets(output.target),
    )
    if output.inspect:
        report_and_show(scenario, output)
        return 0
    if output.find is not None:
        scenario = with_highest_rate(scenario)
    _, new = report(scenario, output)
    overloaded = any(run["verdict"] == "overloaded" for run in new)
    return EXIT_OVERLOADED if output.sweep and overloaded else 0


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
        fields, _ = report(scenario, replace(output, record=path))
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


def with_highest_rate(scenario: Scenario) -> Scenario:
    """The scenario at the highest rate that meets its targets, which is printed first.

    Raises:
        ConfigError: Its workload has no rate, or no rate meets them, or every one does.
    """
    from twostroke.simulator.find_rate import ATTAINMENT, find_rate, meets_all
    from twostroke.simulator.simulate import simulate
    from twostroke.simulator.workloads.make import DEFAULT_REQUESTS

    usual, longest = scenario.workload.num_requests or DEFAULT_REQUESTS, 1

    def at(rate: float) -> Scenario:
        workload = replace(scenario.workload, rate=rate, num_requests=longest * usual)
        return replace(scenario, workload=workload)

    def summarize(rate: float, longer: int) -> Summary:
        nonlocal longest
        longest = max(longest, longer)
        run = simulate(at(rate))
        if run.result.interrupted:
            raise KeyboardInterrupt
        print(f"tried {rate:.4g} requests/s: {run.summary.steady.verdict}", file=sys.stderr)
        return run.summary

    if scenario.workload.arrivals == "closed":
        raise ConfigError("a closed loop has no rate to find", hint="leave out --arrivals closed")
    low, high = find_rate(
        lambda rate: meets_all(partial(summarize, rate)), scenario.workload.rate or 1.0
    )
    targets = ",".join(f"{name}={limit:g}" for name, limit in scenario.targets.items())
    print(
        f"Highest rate at which {ATTAINMENT:.0%} of requests meet {targets}: {low:.4g} requests/s"
        f" ({high:.4g} is too much)"
    )
    return at(low)


def report(
    scenario: Scenario, output: OutputOptions
) -> tuple[list[dict[str, object]], list[dict[str, object]]]:
    """Run the scenario or its sweep; print and write the report, beside earlier ones.

    Returns:
        ``run_fields`` of all runs that were shown, and of the new ones among them.
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
    refuse_to_watch_a_pool(scenarios, of_one_run)
    files = recordings(output.record, scenario.deployment.replicas)
    if output.record is not None and len(files) > 1:
        files.append(fleet_file(output.record))
    refuse_to_overwrite(files, scenario.workload.trace_path)
    earlier = [run for path in output.compare for run in read_report(path)]
    if output.compare_only:
        print_comparison(earlier, sys.stdout)
        write_files([], earlier, earlier, output)
        return earlier, []
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
    refuse_without_answers(runs)
    return fields, new


def refuse_to_watch_a_pool(
    scenarios: Iterable[Scenario], flags: Iterable[tuple[str, object]]
) -> None:
    """Raise ConfigError for what watches equal replicas that are there from first to last."""
    for scenario in scenarios:
        fleet = scenario.fleet
        why = (
            "--autoscale starts and ends them"
            if scenario.scaling.autoscale is not None
            else "--fail ends some"
            if fleet.fail
            else "--prefill and --decode give them roles"
            if fleet.is_split
            else ""
        )
        for flag, value in flags:
            if value and why:
                raise ConfigError(
                    f"{flag} watches equal replicas that stay, and {why}",
                    hint="leave out one of the two; --output-json has what became of the pools",
                )


def refuse_without_answers(runs: Sequence[Run]) -> None:
    """Raise InvalidRequestError if requests were refused and none was served, in any run."""
    refused = [run.summary.refused + run.summary.refused_early for run in runs]
    if not any(refused) or any(run.summary.completed for run in runs):
        return
    length = runs[0].deployment.max_model_len
    late = "" if runs[0].summary.refused else " in time"
    raise InvalidRequestError(
        f"no request was served: all {max(refused)} were refused",
        hint=f"give shorter ones (a request may have {length} tokens), or --max-model-len"
        if not late
        else "give a lower --rate, or leave out --admission predicted",
    )


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
        recorders, routes = open_recordings(output, scenarios[0], files)
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
