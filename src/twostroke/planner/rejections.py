"""Why a device is out of the question, or why prompts are not computed apart: in numbers."""

from __future__ import annotations

from collections.abc import Sequence

from twostroke.planner.apart.split_search import can_be_apart
from twostroke.planner.goals import shown_seconds
from twostroke.planner.plan import Found, Plan, Shortfall
from twostroke.planner.reasons import waits_for
from twostroke.planner.search import Search


def rejections(
    search: Search, plans: Sequence[Plan], found: Found, best: Plan | None
) -> dict[str, str]:
    """For each device that the best plan does not use, why: in numbers.

    Args:
        plans: In their order, without what simulations have refuted; a device is judged by its
            first.
    """
    cheapest, refuted = _first_of_each(plans), _first_of_each(found.plans)
    texts = {}
    for gpu in sorted({*cheapest, *refuted, *found.failures}):
        if best is not None and gpu in best.devices_by_gpu:
            continue
        if gpu in cheapest and best is not None:
            texts[gpu] = _dearer(cheapest[gpu], best)
        elif gpu in refuted:
            texts[gpu] = f"{refuted[gpu].describe()}: enough by formulas, not in simulations"
        else:
            texts[gpu] = _failed(search, found.failures[gpu])
    return texts


def _first_of_each(plans: Sequence[Plan]) -> dict[str, Plan]:
    """The first plan that uses a device, by its name."""
    firsts: dict[str, Plan] = {}
    for plan in plans:
        for gpu in plan.devices_by_gpu:
            firsts.setdefault(gpu, plan)
    return firsts


def other_pools(
    search: Search, plans: Sequence[Plan], misses_apart: Sequence[str], best: Plan | None
) -> str:
    """Why prompts are computed apart, or are not: what the other way costs; empty: not searched."""
    if best is None or search.builder.search.pools != "search" or not can_be_apart(search):
        return ""
    is_apart = best.prompts is not None
    other = next((plan for plan in plans if (plan.prompts is not None) is not is_apart), None)
    if other is not None:
        return _dearer(other, best)
    if is_apart:
        return "no replica that does both keeps to the targets and limits"
    return "; ".join(misses_apart) or "no pair keeps to the targets and limits together"


def _dearer(plan: Plan, best: Plan) -> str:
    ratio = plan.cost_per_hour / best.cost_per_hour if best.cost_per_hour else 1.0
    by = "" if plan.proof is not None or best.proof is None else " by formulas"
    return f"${plan.cost_per_hour:,.2f} an hour{by}, {ratio:.2f} times the best: {plan.describe()}"


def _failed(search: Search, failure: Shortfall) -> str:
    engine, goal, state = failure.engine, failure.goal, failure.state
    if goal is None or state is None:
        return f"{engine.describe()}: {failure.text}"
    time = state.time(goal.metric, goal.percentile)
    alone = "one request at a time" if state.running < 1.5 else f"{state.running:.0f} at a time"
    text = (
        f"{goal.name} {shown_seconds(time)} at best, target {shown_seconds(goal.limit)}"
        f" ({engine.devices_text}, {engine.weights}, {alone})"
    )
    if goal.metric == "tpot":
        text += f": {1 / goal.limit - 1 / time:.3g} tokens/s short"
    _, why = waits_for(search, engine, state, prompts=goal.metric == "ttft")
    limited = "" if failure.text.startswith("--max-replicas") else f" ({failure.text})"
    return f"{text}; {why}{limited}"
