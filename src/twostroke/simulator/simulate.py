"""From a scenario to its run: deploy, make the workload, run the fleet, sum up."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from twostroke.observability.observer import Observer
from twostroke.observability.routes import RouteEvent
from twostroke.routing.routers import make_router
from twostroke.simulator.deployment.deployment import Deployment
from twostroke.simulator.fleet.fleet import Fleet, FleetResult
from twostroke.simulator.fleet.make_replicas import make_pool, replica_maker
from twostroke.simulator.jumping.decode_curve import Bound
from twostroke.simulator.results.columns import Columns, to_columns
from twostroke.simulator.results.run import Run
from twostroke.simulator.results.summary import Summary, summarize_run
from twostroke.simulator.scenario import Scenario, deploy_scenario
from twostroke.simulator.workloads.make import make_workload

Progress = Callable[[int], None]
OnRoute = Callable[[RouteEvent], None] | None


def simulate(
    scenario: Scenario,
    *,
    interval: bool = False,
    jump: bool = True,
    observers: Sequence[Sequence[Observer]] = (),
    progress: Progress = lambda _: None,
    on_route: OnRoute = None,
) -> Run:
    """Run a scenario to its end, or until Ctrl-C (then ``result.interrupted``).

    Args:
        interval: Also with each end of the cost model's interval taken for the truth.
        jump: Take runs of equal steps in one go.
        observers: For each replica its own, or none.
        progress: Called with the number of requests that have just ended.
        on_route: Told of each request's way to a replica.

    Raises:
        ConfigError: Unknown hardware, number format or trace.
        ModelLoadError: Unknown model.
        InsufficientMemoryError: The model does not fit onto the devices.
    """
    scenario, deployment = deploy_scenario(scenario)
    result, columns, summary, workload_note = _run(
        scenario, deployment, "seconds", jump, observers, progress, on_route
    )
    ends: dict[str, Summary] = {}
    bounds: tuple[Bound, Bound] = ("low", "high")
    for bound in bounds if interval and not result.interrupted else ():
        end_result, _, ends[bound], _ = _run(scenario, deployment, bound, jump, (), progress)
        if end_result.interrupted:
            ends, result.interrupted = {}, True
            break
    notes = _notes(scenario, deployment, summary, workload_note)
    return Run(scenario, deployment, result, columns, summary, notes, ends)


def count_requests(scenario: Scenario, interval: bool = False) -> int:
    """How many requests ``simulate`` will run."""
    return make_workload(scenario.workload).workload.total * (3 if interval else 1)


def _notes(
    scenario: Scenario, deployment: Deployment, summary: Summary, workload_note: str | None
) -> tuple[str, ...]:
    notes = [*deployment.notes]
    if workload_note:
        notes.append(workload_note)
    workload = scenario.workload
    if unused := ["--" + name.replace("_", "-") for name in workload.without_effect()]:
        chosen = f"--workload {workload.workload} --arrivals {workload.arrivals}"
        notes.append(f"nothing depends on {', '.join(unused)} with {chosen}")
    if unused := scenario.scaling.without_effect():
        notes.append(f"nothing depends on {', '.join(unused)} without --autoscale")
    return tuple(notes)


def _run(
    scenario: Scenario,
    deployment: Deployment,
    bound: Bound,
    jump: bool,
    observers: Sequence[Sequence[Observer]],
    progress: Progress,
    on_route: OnRoute = None,
) -> tuple[FleetResult, Columns, Summary, str | None]:
    """One simulation; the last value is the workload's note."""
    options = scenario.deployment
    make = replica_maker(
        deployment,
        options,
        scenario.cache,
        deployment.scheduler,
        scenario.tiers,
        bound=bound,
        jump=jump,
        seed=scenario.workload.seed,
        observers=observers,
        targets=scenario.watched,
    )
    made = make_workload(scenario.workload)
    fleet = Fleet(
        make_pool(deployment, options, scenario.scaling, make),
        make_router(options.router),
        made.workload,
        deployment.max_model_len,
        on_route,
    )
    result = fleet.run(progress)
    columns = to_columns(result.logs)
    summary = summarize_run(
        result, columns, deployment, options, scenario.targets, made.workload.total
    )
    return result, columns, summary, made.note
