"""From a scenario to its run: deploy, make the workload, run the fleet, sum up."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from twostroke.observability.observer import Observer
from twostroke.observability.routes import RouteEvent
from twostroke.routing.routers import make_router
from twostroke.simulator.deploy_pools import DeployedPool, deploy_pools
from twostroke.simulator.deployment.deployment import TOO_LONG
from twostroke.simulator.fleet.fleet import Fleet
from twostroke.simulator.fleet.pool import Pool
from twostroke.simulator.fleet.result import FleetResult
from twostroke.simulator.jumping.decode_curve import Bound
from twostroke.simulator.make_fleet import EngineSettings, make_fleet
from twostroke.simulator.results.columns import Columns, to_columns
from twostroke.simulator.results.pools import PoolRun
from twostroke.simulator.results.run import Run
from twostroke.simulator.results.summary import Summary, summarize_run
from twostroke.simulator.scenario import Scenario
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
    scenario, pools = deploy_pools(scenario)
    result, columns, summary, workload_note = _run(
        scenario, pools, "seconds", jump, observers, progress, on_route
    )
    ends: dict[str, Summary] = {}
    bounds: tuple[Bound, Bound] = ("low", "high")
    for bound in bounds if interval and not result.interrupted else ():
        end_result, _, ends[bound], _ = _run(scenario, pools, bound, jump, (), progress)
        if end_result.interrupted:
            ends, result.interrupted = {}, True
            break
    notes = _notes(scenario, pools, workload_note)
    return Run(scenario, pools[-1].deployment, result, columns, summary, notes, ends)


def count_requests(scenario: Scenario, interval: bool = False) -> int:
    """How many requests ``simulate`` will run."""
    return make_workload(scenario.workload).workload.total * (3 if interval else 1)


def _notes(
    scenario: Scenario, pools: Sequence[DeployedPool], workload_note: str | None
) -> tuple[str, ...]:
    notes = []
    for pool in pools:
        for note in pool.deployment.notes:
            if pool.role == "prefill":
                note = note.replace(TOO_LONG, "longer prompts are computed where answers are")
            notes.append(note if pool.role == "both" else f"{pool.role}: {note}")
    if workload_note:
        notes.append(workload_note)
    workload = scenario.workload
    if unused := ["--" + name.replace("_", "-") for name in workload.without_effect()]:
        chosen = f"--workload {workload.workload} --arrivals {workload.arrivals}"
        notes.append(f"nothing depends on {', '.join(unused)} with {chosen}")
    if unused := scenario.scaling.without_effect():
        notes.append(f"nothing depends on {', '.join(unused)} without --autoscale")
    if unused := scenario.fleet.without_effect():
        notes.append(f"nothing depends on {', '.join(unused)} without --prefill and --decode")
    return tuple(notes)


def _run(
    scenario: Scenario,
    pools: Sequence[DeployedPool],
    bound: Bound,
    jump: bool,
    observers: Sequence[Sequence[Observer]],
    progress: Progress,
    on_route: OnRoute = None,
) -> tuple[FleetResult, Columns, Summary, str | None]:
    """One simulation; the last value is the workload's note."""
    answering = pools[-1]
    settings = EngineSettings(
        bound=bound,
        jump=jump,
        seed=scenario.workload.seed,
        observers=observers,
        targets=scenario.watched,
    )
    pool, split = make_fleet(scenario, pools, settings)
    made = make_workload(scenario.workload)
    fleet = Fleet(
        pool,
        make_router(scenario.deployment.router),
        made.workload,
        answering.deployment.max_model_len,
        on_route,
        split,
    )
    result = fleet.run(progress)
    columns = to_columns(result.logs)
    pool_runs = _pool_runs(result, columns, pools, pool)
    summary = summarize_run(result, columns, pool_runs, scenario.targets, made.workload.total)
    return result, columns, summary, made.note


def _pool_runs(
    result: FleetResult, columns: Columns, pools: Sequence[DeployedPool], pool: Pool
) -> list[PoolRun]:
    """Each pool's part of the steps."""
    runs = []
    end = max((log.end[-1] for log in result.logs if len(log)), default=0.0)
    for each in pools:
        part = columns
        if len(pools) > 1:
            logs = [log for log, role in zip(result.logs, result.roles) if role == each.role]
            part = to_columns(logs)
        seconds = pool.replica_seconds(end, each.role)
        runs.append(PoolRun(each.role, each.deployment, each.options, part, seconds))
    return runs
