"""Protects: the fewest replicas are those that a scan finds, and the ranking is by cost."""

from __future__ import annotations

import pytest

from tests.planner.questions import engine, search_for
from twostroke.planner.engines import engines
from twostroke.planner.options import GoalOptions
from twostroke.planner.plan import Plan, Shortfall, distinct
from twostroke.planner.search import spare_replicas


@pytest.mark.parametrize("traffic", [{"rate": 90.0}, {"users": 300}])
def test_the_fewest_are_those_of_a_scan(traffic: dict[str, float]) -> None:
    search = search_for(traffic=traffic)
    tried = 0
    for each in list(engines(search.builder))[::3]:
        plan = search.fewest(each, "high")
        if not isinstance(plan, Plan) or plan.replicas > 60:
            continue
        tried += 1
        scanned = next(
            count
            for count in range(1, 100)
            if (state := search.at(plan, count)) is not None and not state.misses(search.goals)
        )
        assert plan.replicas == scanned, each
    assert tried >= 5


def test_plans_are_ranked_by_cost_and_meet_the_targets() -> None:
    search = search_for()
    found = search.run(engines(search.builder))
    costs = [plan.cost_per_hour for plan in found.plans]
    assert costs == sorted(costs) and len(costs) > 10
    assert all(not plan.states["high"].misses(search.goals) for plan in found.plans)
    assert found.middle[0].cost_per_hour <= costs[0]
    families = [plan.engine.memory_key for plan in distinct(found.plans)]
    assert len(families) == len(set(families))


def test_more_traffic_and_tighter_targets_never_cost_less() -> None:
    search = search_for()
    base = search.run(engines(search.builder)).plans[0].cost_per_hour
    doubled = search.other(traffic=search.traffic.times(2))
    tighter = search_for(goals={"ttft": ("p95=0.5",), "tpot": ("p95=0.02",)})
    for harder in (doubled, tighter):
        assert harder.run(engines(harder.builder)).plans[0].cost_per_hour >= base


def test_formats_that_save_nothing_are_not_chosen() -> None:
    search = search_for(traffic={"rate": 1.0}, limits={"gpus": "h100"})
    best = search.run(engines(search.builder)).plans[0]
    assert (best.engine.weights, best.engine.kv_cache) == ("bf16", "bf16")


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"at_hand": "h100=1"}, "1 are at hand"),
        ({"budget": 1.0}, "--budget 1, a replica costs $2.69 an hour"),
        ({"max_watts": 100.0}, "--max-watts 100, a replica takes 700"),
        ({"max_replicas": 1}, "--max-replicas 1"),
    ],
)
def test_limits_are_kept_and_named(limits: dict[str, object], words: str) -> None:
    search = search_for(traffic={"rate": 200.0}, limits=limits)
    failure = search.fewest(engine(), "high")
    assert isinstance(failure, Shortfall) and words in failure.text


def test_a_model_that_does_not_fit_says_by_how_much() -> None:
    failure = search_for("llama-3.1-70b").fewest(engine(), "high")
    assert isinstance(failure, Shortfall) and failure.kind == "memory" and "GB" in failure.text


def test_spare_replicas_follow_the_binomial() -> None:
    one = GoalOptions(availability=0.999, replica_availability=0.99)
    assert spare_replicas(1, one) == 1  # 1 - 0.01 ** 2 = 0.9999
    assert spare_replicas(1, GoalOptions(availability=0.99, replica_availability=0.99)) == 0
    assert spare_replicas(50, one) >= spare_replicas(10, one) >= 1
    assert spare_replicas(50, GoalOptions()) == 0


def test_a_throughput_target_adds_replicas() -> None:
    traffic = {"users": 64}
    without = search_for(traffic=traffic, goals={"tpot": ("p95=1",)}).fewest(engine(), "high")
    wanted = search_for(traffic=traffic, goals={"throughput": 5000.0}).fewest(engine(), "high")
    assert isinstance(without, Plan) and isinstance(wanted, Plan)
    assert wanted.replicas > without.replicas == 1
    assert wanted.states["high"].rate * wanted.replicas * wanted.output >= 5000
