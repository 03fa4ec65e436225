"""Protects: no plan of the front is worse in both, and other questions have their answers."""

from __future__ import annotations

from itertools import pairwise

from tests.planner.questions import planned


def test_the_front_trades_cost_for_speed() -> None:
    points = planned().front
    assert len(points) >= 3
    for cheap, fast in pairwise(points):
        assert cheap.plan.cost_per_hour < fast.plan.cost_per_hour and cheap.tpot > fast.tpot


def test_harder_questions_cost_more() -> None:
    answer = planned()
    assert answer.best is not None
    costs = {
        each.question: each.plan.cost_per_hour
        for each in answer.variations
        if each.plan is not None
    }
    best = answer.best.plan.cost_per_hour
    assert costs["requests/s x 2"] >= best >= costs["requests/s x 0.5"]
    assert costs["TPOT P95 40 ms -> 20 ms"] >= best >= costs["TPOT P95 40 ms -> 80 ms"]
    assert costs["TTFT P95 500 ms -> 250 ms"] >= best
