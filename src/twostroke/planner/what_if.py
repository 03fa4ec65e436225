"""What changes the answer: other traffic, other targets; and what more speed would cost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from twostroke.planner.apart.split_search import SplitSearch, resized
from twostroke.planner.engines import EngineChoice
from twostroke.planner.goals import Goal, shown_seconds
from twostroke.planner.plan import Found, Plan, distinct
from twostroke.planner.search import Search
from twostroke.planner.traffic import Traffic

# Replicas over those of a plan, for points of the front.
MORE_REPLICAS = (1.0, 1.25, 1.5, 2.0, 3.0, 4.0)
# Engines of which the front and variations are made: the best of so many configurations.
MOST_FAMILIES, MOST_LIMITS = 40, 8
MOST_FRONT = 10
# Pairs of engines with prefill and decode apart that variations are made of.
MOST_PAIRS_VARIED = 3
# Beyond so many times the cheapest, more speed is no choice.
MOST_TIMES_DEARER = 8
# Dollars that are equal when they are shown.
HALF_A_CENT = 0.005


@dataclass(frozen=True, slots=True)
class Variation:
    """Another question, and its cheapest plan.

    Attributes:
        kind: How the answer differs: in words.
    """

    question: str
    plan: Plan | None
    kind: str


@dataclass(frozen=True, slots=True)
class FrontPoint:
    """A plan that none is both cheaper and faster than: TPOT P95 at the pessimistic end."""

    plan: Plan
    tpot: float


def variations(search: Search, found: Found) -> list[Variation]:
    """The cheapest plans of related questions, by formulas.

    Engines are those that were best in their family, with each of the limits that were best.
    """
    engines = _few_engines(found) if search.builder.search.pools != "apart" else []
    pairs = [plan for plan in distinct(found.plans) if plan.prompts is not None][:MOST_PAIRS_VARIED]
    if not engines and not pairs:
        return []
    base = _cheapest(search, engines, pairs, 1.0)
    results = []
    for question, other in _questions(search):
        plan = _cheapest(other, engines, pairs, _times(search.traffic, other.traffic))
        results.append(Variation(question, plan, _difference(search, base, plan)))
    return results


def front(search: Search, found: Found, dollars: float) -> list[FrontPoint]:
    """Cost against TPOT: the plans that meet the targets, also with more replicas than needed.

    Args:
        dollars: The best plan's, an hour.
    """
    plans = with_more_replicas(search, found, dollars)
    kept = pareto(plans, lambda plan: plan.states["high"].tpot.at(95))
    if len(kept) > MOST_FRONT:
        step = (len(kept) - 1) / (MOST_FRONT - 1)
        kept = [kept[round(index * step)] for index in range(MOST_FRONT)]
    return [FrontPoint(plan, plan.states["high"].tpot.at(95)) for plan in kept]


def with_more_replicas(search: Search, found: Found, dollars: float) -> list[Plan]:
    """The best plans, each also with more replicas, up to what no speed is worth.

    Args:
        dollars: The best plan's, an hour. What formulas alone call cheaper, simulations refuted.
    """
    plans = []
    for plan in distinct(found.plans)[:MOST_FAMILIES]:
        for factor in MORE_REPLICAS:
            if factor > 1 and round(plan.replicas * factor) == plan.replicas:
                continue
            more = plan if factor == 1 else resized(search, plan, factor)
            if not search.allows(more.devices_by_gpu, more.replicas_in_all):
                break
            plans.append(more)
    plans = [plan for plan in plans if plan.cost_per_hour >= dollars - HALF_A_CENT]
    dearest = MOST_TIMES_DEARER * min((plan.cost_per_hour for plan in plans), default=0.0)
    return [plan for plan in plans if plan.cost_per_hour <= dearest]


def pareto(plans: Iterable[Plan], time: Callable[[Plan], float]) -> list[Plan]:
    """Plans that none is both cheaper and faster than, by 2 % at least; the cheapest first."""
    kept: list[tuple[Plan, float]] = []
    for plan in sorted(plans, key=lambda plan: (plan.cost_per_hour, time(plan))):
        if not kept or time(plan) < 0.98 * kept[-1][1]:
            kept.append((plan, time(plan)))
    return [plan for plan, _ in kept]


def _questions(search: Search) -> Iterator[tuple[str, Search]]:
    traffic = search.traffic
    for factor in (2.0, 0.5):
        yield f"{_volume(traffic)} x {factor:g}", search.other(traffic=traffic.times(factor))
    for metric in ("tpot", "ttft", "e2e"):
        for factor in (0.5, 2.0):
            goals = tuple(
                replace(goal, limit=factor * goal.limit) if goal.metric == metric else goal
                for goal in search.goals
            )
            changed = [goal for goal in search.goals if goal.metric == metric]
            if changed:
                texts = (
                    f"{goal.name} {shown_seconds(goal.limit)} ->"
                    f" {shown_seconds(factor * goal.limit)}"
                    for goal in changed
                )
                yield ", ".join(texts), search.other(goals=goals)


def _volume(traffic: Traffic) -> str:
    return "requests/s" if traffic.users is None else "users"


def _few_engines(found: Found) -> list[EngineChoice]:
    tried = [plan for plan in distinct(found.plans) if plan.prompts is None][:MOST_FAMILIES]
    limits = dict.fromkeys((plan.engine.seqs, plan.engine.budget) for plan in tried)
    families = [plan.engine for plan in tried]
    families += [
        failure.engine
        for failure in found.failures.values()
        if failure.kind in ("goal", "overload")
    ]
    return list(
        dict.fromkeys(
            replace(engine, seqs=seqs, budget=budget)
            for engine in families
            for seqs, budget in list(limits)[:MOST_LIMITS] or [(engine.seqs, engine.budget)]
        )
    )


def _cheapest(
    search: Search, engines: Iterable[EngineChoice], pairs: Iterable[Plan], more: float
) -> Plan | None:
    """The best of these engines, and of the engines of these plans.

    Args:
        more: Traffic over that of the plans.
    """
    plans = [
        result for engine in engines if isinstance(result := search.fewest(engine, "high"), Plan)
    ]
    apart = SplitSearch(search)
    for pair in pairs:
        assert pair.prompts is not None
        rate = pair.middle.rate * pair.replicas * more
        together = apart.fewest(pair.prompts.engine, pair.engine, "high", rate)
        if together is not None:
            plans.append(together)
    return min(plans, key=search.order, default=None)


def _times(traffic: Traffic, other: Traffic) -> float:
    """How much more the other is."""
    if traffic.users is not None and other.users is not None:
        return other.users / traffic.users
    return other.rate / traffic.rate


def _difference(search: Search, base: Plan | None, plan: Plan | None) -> str:
    """What another question does to the answer, in a few words."""
    if plan is None:
        return "no plan meets the targets"
    text = f"{plan.describe()}, ${plan.cost_per_hour:,.2f} an hour"
    if base is None:
        return text
    if base.cost_per_hour:
        text += f" ({plan.cost_per_hour / base.cost_per_hour:.2f} times)"
    before, after = (
        search.builder.sheet(each.engine.gpu).memory_bandwidth * each.engine.num_devices / 1e12
        for each in (base, plan)
    )
    if before == after:
        return text
    step = "up" if after > before else "down"
    return f"{text}; bandwidth of a replica {step} from {before:.3g} to {after:.3g} TB/s"


def shown_goals(goals: Sequence[Goal]) -> list[Goal]:
    """The targets, and what else is usually asked of a plan."""
    fixed = [Goal("ttft", 95.0, 0.0), Goal("tpot", 50.0, 0.0), Goal("tpot", 95.0, 0.0)]
    fields = {goal.field for goal in goals}
    return [*goals, *(goal for goal in fixed if goal.field not in fields)]
