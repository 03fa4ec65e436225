"""Protects: what binds a plan is what gives way first, and rejections have the numbers."""

from __future__ import annotations

from typing import Any

import pytest

from tests.planner.questions import engine, search_for
from twostroke.planner.engines import EngineChoice, engines
from twostroke.planner.plan import Plan
from twostroke.planner.reasons import binding, lever
from twostroke.planner.rejections import rejections
from twostroke.planner.search import Search


def bound_of(search: Search, one: EngineChoice) -> str:
    plan = search.fewest(one, "high")
    assert isinstance(plan, Plan), plan
    return binding(search, plan).constraint


@pytest.mark.parametrize(
    ("changes", "traffic", "goals", "constraint"),
    [
        # Short prompts, long answers: each step reads the weights.
        (
            {},
            {"rate": 60.0, "input": 50, "output": 400},
            {"tpot": ("p95=0.012",)},
            "memory bandwidth",
        ),
        # Long prompts, short answers: each is computed.
        ({}, {"rate": 60.0, "input": 4000, "output": 10}, {"ttft": ("p95=1",)}, "compute"),
        # Few places in the batch.
        (
            {"seqs": 4},
            {"rate": 20.0, "input": 100, "output": 400},
            {"ttft": ("p95=5",)},
            "scheduler limits",
        ),
        # Little memory beside the weights.
        (
            {"gpu": "l4", "budget": 1024},
            {"rate": 10.0, "input": 1500, "output": 600},
            {"e2e": ("p95=3000",)},
            "memory capacity",
        ),
    ],
)
def test_what_binds(
    changes: dict[str, Any], traffic: dict[str, Any], goals: dict[str, Any], constraint: str
) -> None:
    search = search_for(traffic=traffic, goals=goals)
    assert bound_of(search, engine(**changes)) == constraint


def test_the_lever_does_what_it_says() -> None:
    search = search_for(traffic={"rate": 200.0, "input": 50, "output": 400})
    plan = search.fewest(engine(seqs=4), "high")
    assert isinstance(plan, Plan)
    found = lever(search, plan)
    assert found is not None and found.plan.cost_per_hour < plan.cost_per_hour
    again = search.fewest(found.plan.engine, "high")
    assert isinstance(again, Plan) and again.replicas == found.plan.replicas
    assert f"{found.plan.replicas} replica" in found.effect


def test_each_device_that_is_not_best_has_its_reason() -> None:
    search = search_for("llama-3.1-70b", {"rate": 5.0}, {"tpot": ("p95=0.025",)}, {"tp": "1,2,4"})
    found = search.run(engines(search.builder))
    best = found.plans[0]
    reasons = rejections(search, found.plans, found, best)
    assert set(reasons) | {best.engine.gpu} == {"h100-sxm", "l40s", "l4"}
    for gpu in set(reasons) & {"l4", "l40s"}:
        assert "tokens/s short" in reasons[gpu] and "target 25 ms" in reasons[gpu]


def test_a_device_without_the_memory_says_so() -> None:
    search = search_for("llama-3.1-70b", limits={"gpus": "l4", "tp": "1"})
    found = search.run(engines(search.builder))
    assert "GB too much" in rejections(search, found.plans, found, None)["l4"]
