"""``--html``: the answer as one page with plots, which needs no network and no script."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from twostroke.planner.apart.split_search import state_of
from twostroke.planner.goals import Goal
from twostroke.planner.make_plans import Planned
from twostroke.planner.plan import Plan, distinct
from twostroke.planner.reports.plots import Mark, bars, lines, scatter
from twostroke.planner.reports.style import STYLE
from twostroke.planner.reports.tables import (
    COMMANDS,
    MEMORY_HEADER,
    memory_notes,
    memory_rows,
    plan_rows,
    sections,
)
from twostroke.planner.search import Search
from twostroke.planner.what_if import HALF_A_CENT, pareto, shown_goals, with_more_replicas
from twostroke.simulator.jumping.decode_curve import Bound

ENDS: dict[str, Bound] = {"low": "low", "middle": "seconds", "high": "high"}
# Columns of the table of devices, bars of their costs.
MOST_DEVICES, MOST_BARS = 8, 12
# Traffic of the curves, over the traffic that is planned for.
FACTORS = (0.25, 0.5, 0.75, 0.9, 1.0, 1.05, 1.1, 1.2, 1.3, 1.5)


def plans_page(planned: Planned) -> str:
    """The page."""
    body = [f"<h1>Plan: {escape(planned.model)}</h1>", f"<p>{escape(planned.traffic.describe())}"]
    targets = ", ".join(goal.text for goal in planned.goals) or "none"
    body.append(f"<br>Targets: {escape(targets)}; {planned.found.evaluated:,} candidates</p>")
    if planned.best is None:
        body.append("<p><b>No plan meets the targets at the pessimistic end.</b></p>")
    else:
        # A plan is a column, so that no figure is out of sight.
        names, plans = plan_rows(planned)
        header, *figures = [(name, *values) for name, *values in zip(names, *plans)]
        body.append(_table(header, figures))
        body += ["<h2>The cheapest plan of each device</h2>", _table(*device_rows(planned))]
        body += _plots(planned, planned.best.plan)
    for title, text in sections(planned):
        body.append(f"<h2>{escape(title)}</h2>")
        if title in planned.memory:
            table = planned.memory[title]
            body.append(_table(MEMORY_HEADER, memory_rows(table)))
            body += [f"<p>{escape(note)}</p>" for note in memory_notes(table)]
        elif title == COMMANDS:
            body.append(f"<pre>{escape(text)}</pre>")
        else:
            items = "".join(f"<li>{escape(line)}</li>" for line in text.splitlines())
            body.append(f"<ul>{items}</ul>")
    notes = "".join(f"<li>{escape(note)}</li>" for note in planned.notes)
    body.append(f"<h2>Notes</h2><ul class=muted>{notes}</ul>")
    title = f"Plan: {escape(planned.model)}"
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style>'
        + "\n".join(body)
        + "</html>\n"
    )


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    inner = "".join(
        f"<tr><th>{escape(first)}</th>{''.join(f'<td>{escape(cell)}</td>' for cell in rest)}</tr>"
        for first, *rest in rows
    )
    return f'<div class="wide"><table><tr>{head}</tr>{inner}</table></div>'


def device_rows(planned: Planned) -> tuple[list[str], list[list[str]]]:
    """A column for each device that can, the cheapest first: its cheapest plan."""
    ranked = cheapest_of_devices(planned)[:MOST_DEVICES]
    sheets = [[planned.search.builder.sheet(gpu) for gpu in plan.devices_by_gpu] for plan in ranked]
    goals = shown_goals(planned.goals)
    rows = [
        ["replicas", *(plan.replicas_text for plan in ranked)],
        ["devices in each", *(plan.devices_text for plan in ranked)],
        ["weights, KV cache", *(f"{p.engine.weights}, {p.engine.kv_cache}" for p in ranked)],
        *(
            [f"{goal.name}, ms", *(f"{1e3 * plan.times(goal)[2]:.3g}" for plan in ranked)]
            for goal in goals
        ),
        ["output tokens/s", *(f"{plan.output_throughput:,.0f}" for plan in ranked)],
        ["$ an hour", *(f"{plan.cost_per_hour:,.2f}" for plan in ranked)],
        ["$ a M tokens", *(f"{plan.cost_per_million:.2f}" for plan in ranked)],
        ["kW", *(f"{plan.watts / 1e3:,.2f}" for plan in ranked)],
        [
            "TB/s of a device",
            *(_each(of.memory_bandwidth / 1e12 for of in each) for each in sheets),
        ],
        ["GB of each", *(_each(of.memory_bytes / 1e9 for of in each) for each in sheets)],
        ["times by", *("simulation" if plan.proof else "formulas" for plan in ranked)],
    ]
    return ["at the pessimistic end", *(plan.gpus_text for plan in ranked)], rows


def cheapest_of_devices(planned: Planned) -> list[Plan]:
    """The cheapest plan of each device, or pair of them; the cheapest first."""
    least = planned.best.plan.cost_per_hour - HALF_A_CENT if planned.best else 0.0
    by_formulas = (plan for plan in distinct(planned.found.plans) if plan.cost_per_hour >= least)
    plans: dict[str, Plan] = {}
    for plan in (*(shown.plan for shown in planned.shown), *by_formulas):
        plans.setdefault(plan.gpus_text, plan)
    return sorted(plans.values(), key=lambda plan: plan.cost_per_hour)


def _each(values: Iterable[float]) -> str:
    return " and ".join(f"{value:.3g}" for value in values)


def _plots(planned: Planned, best: Plan) -> list[str]:
    goals = planned.goals or (Goal("ttft", 95.0, 0.0), Goal("tpot", 95.0, 0.0))
    plots = ["<h2>Cost against each target</h2>"]
    plans = with_more_replicas(planned.search, planned.found, best.cost_per_hour)
    plots += [_cost_against(plans, goal) for goal in goals]
    cheapest = cheapest_of_devices(planned)[:MOST_BARS]
    ranked = [(plan.gpus_text, plan.cost_per_hour) for plan in cheapest]
    plots += ["<h2>Cost by device</h2>", _wide(bars(ranked, "US dollars an hour"))]
    for goal in goals:
        plots.append(f"<h2>{escape(goal.name)} of the best plan, as traffic grows</h2>")
        plots.append(_curve(planned.search, best, goal))
    return plots


def _cost_against(plans: Sequence[Plan], goal: Goal) -> str:
    """All plans by cost and a latency; a line joins those that none beats in both."""

    def mark(plan: Plan) -> Mark:
        return Mark(plan.cost_per_hour, 1e3 * plan.times(goal)[2], plan.short_text)

    best = pareto(plans, lambda plan: plan.times(goal)[2])
    others = [mark(plan) for plan in plans if plan not in best]
    y_title = f"{goal.name} at the pessimistic end, ms"
    limit = 1e3 * goal.limit if goal.limit else None
    marks = [mark(plan) for plan in best]
    return _wide(scatter(marks, "US dollars an hour", y_title, others=others, limit=limit))


def _curve(search: Search, plan: Plan, goal: Goal) -> str:
    """A latency at both ends of the interval and its middle, by formulas, over the traffic."""
    curves: dict[str, list[tuple[float, float]]] = {"low": [], "middle": [], "high": []}
    for factor in FACTORS:
        other = search.other(traffic=search.traffic.times(factor))
        for name, bound in ENDS.items():
            state = state_of(other, plan, plan.replicas, bound)
            if state is not None:
                curves[name].append((factor, 1e3 * state.time(goal.metric, goal.percentile)))
    limit = 1e3 * goal.limit if goal.limit else None
    return _wide(lines(curves, "traffic, of what is planned for", f"{goal.name}, ms", limit))


def _wide(plot: str) -> str:
    """A plot that scrolls where it would be too small to read."""
    return f'<div class="wide">{plot}</div>'
