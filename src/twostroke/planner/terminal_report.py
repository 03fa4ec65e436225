"""What ``twostroke plan`` prints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TextIO

from twostroke.observability.tables import print_table
from twostroke.planner.goals import Goal
from twostroke.planner.make_plans import Planned, ShownPlan
from twostroke.planner.report_rows import proof_runs
from twostroke.planner.search import Plan

# Plans whose reasons are spelled out.
EXPLAINED = 3


def print_plans(planned: Planned, stream: TextIO) -> None:
    """The ranked table, reasons, and why other devices are not the best."""
    print(f"{planned.model}: {planned.traffic.describe()}", file=stream)
    targets = ", ".join(goal.text for goal in planned.goals) or "none"
    print(f"Targets: {targets}; {planned.found.evaluated:,} candidates", file=stream)
    if planned.best is None:
        print("\nNo plan meets the targets at the pessimistic end of the interval.", file=stream)
    else:
        _print_table(planned, stream)
        _print_reasons(planned, stream)
    _print_middle(planned, stream)
    if planned.rejected:
        print("\nOther devices:", file=stream)
        for gpu, text in planned.rejected.items():
            print(f"  {gpu}: {text}", file=stream)


def _print_table(planned: Planned, stream: TextIO) -> None:
    goals = _shown_goals(planned.goals)
    header = (
        "",
        "replicas",
        "weights",
        "KV",
        "seqs",
        "budget",
        *(goal.name for goal in goals),
        "tokens/s",
        "load",
        "$/hour",
        "$/M",
        "kW",
    )
    rows = [_row(number, shown.plan, goals) for number, shown in enumerate(planned.shown, start=1)]
    print(file=stream)
    print_table(header, rows, stream)
    simulated = sum(shown.plan.proof is not None for shown in planned.shown)
    by = (
        f"times of the first {simulated} by {proof_runs(planned.shown[0].plan)} simulations each,"
        if simulated
        else "times"
    )
    rest = " of the others" if simulated else ""
    end = "" if not simulated else f"{rest} by formulas; "
    print(
        f"{by}{end if simulated else ' by formulas; '}milliseconds, in brackets the pessimistic end",
        file=stream,
    )


def _shown_goals(goals: Sequence[Goal]) -> list[Goal]:
    """The targets, and else what is usually asked."""
    fixed = [Goal("ttft", 95.0, 0.0), Goal("tpot", 50.0, 0.0), Goal("tpot", 95.0, 0.0)]
    fields = {goal.field for goal in goals}
    return [*goals, *(goal for goal in fixed if goal.field not in fields)]


def _row(number: int, plan: Plan, goals: Sequence[Goal]) -> tuple[str, ...]:
    engine = plan.engine
    count = f"{plan.replicas}+{plan.spare}" if plan.spare else f"{plan.replicas}"
    times = []
    for goal in goals:
        _, middle, high = plan.times(goal)
        times.append(f"{_shown(middle)} ({_shown(high)})")
    drafts = f" +{engine.drafts.tokens} drafts" if engine.drafts.tokens else ""
    return (
        f"{number}. {engine.tp} x {engine.gpu}{drafts}",
        count,
        engine.weights,
        engine.kv_cache,
        f"{engine.seqs}",
        f"{engine.budget}",
        *times,
        f"{plan.output_throughput:,.0f}",
        f"{plan.middle.load:.0%}",
        f"{plan.cost_per_hour:,.2f}",
        f"{plan.cost_per_million:.2f}",
        f"{plan.watts / 1e3:.1f}",
    )


def _shown(seconds: float) -> str:
    """Milliseconds in three digits."""
    return f"{1e3 * seconds:.3g}" if seconds < 0.1 else f"{1e3 * seconds:,.0f}"


def _print_reasons(planned: Planned, stream: TextIO) -> None:
    for number, shown in enumerate(planned.shown[:EXPLAINED], start=1):
        _print_reason(number, shown, stream)


def _print_reason(number: int, shown: ShownPlan, stream: TextIO) -> None:
    print(f"\n{number}. {shown.plan.engine.describe()}", file=stream)
    print(f"   binding: {shown.binding.constraint} ({shown.binding.text})", file=stream)
    if shown.lever is not None:
        print(f"   next lever: {shown.lever.change}: {shown.lever.effect}", file=stream)


def _print_middle(planned: Planned, stream: TextIO) -> None:
    plan, best = planned.middle, planned.best
    if plan is None:
        print("Nor at its middle.", file=stream)
        return
    same = best is not None and plan.cost_per_hour >= best.plan.cost_per_hour - 0.005
    text = (
        "no cheaper"
        if same
        else f"{plan.replicas + plan.spare} x {plan.engine.describe()}, ${plan.cost_per_hour:,.2f}"
        " an hour, by formulas"
    )
    print(f"\nAt the middle of the interval: {text}", file=stream)
