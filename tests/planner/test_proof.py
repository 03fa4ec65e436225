"""Protects: the best plans are simulated with several seeds and judged at the worst."""

from __future__ import annotations

from dataclasses import replace

from tests.planner.questions import engine, planned, search_for
from twostroke.planner.goals import Goal
from twostroke.planner.make_plans import settle
from twostroke.planner.plan import Plan
from twostroke.planner.proof import Prover

TPOT = Goal("tpot", 95.0, 0.04)


def test_intervals_hold_every_seed() -> None:
    search = search_for(traffic={"rate": 8.0, "input": 500, "output": 100})
    proof = Prover(search.builder, engine(), 1, search.traffic, 5.0, seeds=2).at(
        "low", "seconds", "high"
    )
    figure = proof.time("tpot", 95.0)
    assert figure.low < figure.middle < figure.high
    worst = max(run.time("tpot", 95.0) for run in proof.runs["high"])
    assert figure.high == worst
    assert proof.meets((replace(TPOT, limit=worst),), pessimistic=True)
    assert not proof.meets((replace(TPOT, limit=0.99 * worst),), pessimistic=True)
    assert proof.meets((replace(TPOT, limit=figure.middle),), pessimistic=False)


def test_an_overload_is_seen() -> None:
    search = search_for(traffic={"rate": 300.0, "input": 500, "output": 100})
    proof = Prover(search.builder, engine(), 1, search.traffic, 300.0, seeds=1).at("high")
    assert not proof.meets((), pessimistic=True)


def test_replicas_are_the_fewest_that_simulations_allow() -> None:
    search = search_for(traffic={"rate": 60.0, "input": 500, "output": 100})
    plan = search.fewest(engine(), "high")
    assert isinstance(plan, Plan)
    dear = search.plan(plan.engine, plan.replicas + 2, 0, search.limit(plan.engine))
    settled = settle(search, dear, 1, lambda: None)
    assert settled is not None and settled.proof is not None
    assert settled.replicas < dear.replicas
    assert settled.proof.meets(search.goals, pessimistic=True)


def test_the_same_question_has_the_same_answer() -> None:
    first, again = (planned(output={"simulate": 1, "seeds": 1}) for _ in range(2))
    assert [shown.plan for shown in first.shown] == [shown.plan for shown in again.shown]
    assert first.shown[0].plan.proof is not None
