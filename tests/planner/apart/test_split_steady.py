"""Protects: formulas of prefill and decode apart say what the simulator's two pools say."""

from __future__ import annotations

from statistics import fmean
from typing import Any

import pytest

from tests.planner.questions import engine, search_for
from twostroke.planner.apart.split_search import SplitSearch
from twostroke.planner.goals import Goal, Metric
from twostroke.planner.plan import Plan
from twostroke.planner.proof import Prover

# Model, engines of both kinds, how many of each, traffic.
SAMPLE: list[tuple[str, dict[str, Any], dict[str, Any], tuple[int, int], dict[str, Any]]] = [
    ("llama-3.1-8b", {}, {}, (1, 1), {"rate": 15.0, "input": 1000, "output": 200}),
    ("llama-3.1-8b", {"gpu": "l40s"}, {}, (3, 1), {"rate": 20.0, "input": 800, "output": 200}),
    ("llama-3.1-8b", {}, {"gpu": "l40s"}, (1, 3), {"rate": 16.0, "input": 2000, "output": 100}),
    ("llama-3.1-8b", {"budget": 512}, {}, (2, 1), {"rate": 15.0, "input": 3000, "output": 150}),
    ("llama-3.1-8b", {}, {}, (1, 2), {"users": 100, "input": 500, "output": 200}),
]
# By metric and percentile: the largest error of one, and the mean of all.
ALLOWED: dict[tuple[Metric, float], tuple[float, float]] = {
    ("ttft", 50.0): (0.45, 0.25),
    ("ttft", 95.0): (0.60, 0.30),
    ("tpot", 50.0): (0.15, 0.08),
    ("tpot", 95.0): (0.40, 0.20),
    ("e2e", 50.0): (0.15, 0.08),
    ("e2e", 95.0): (0.35, 0.18),
}


def plan_of(
    model: str,
    prompts: dict[str, Any],
    answers: dict[str, Any],
    counts: tuple[int, int],
    traffic: dict[str, Any],
) -> tuple[SplitSearch, Plan]:
    apart = SplitSearch(search_for(model, traffic))
    return apart, apart.plan(engine(**prompts), counts[0], engine(**answers), counts[1])


def test_formulas_agree_with_the_simulator() -> None:
    sizes: dict[tuple[Metric, float], list[float]] = {key: [] for key in ALLOWED}
    for case in SAMPLE:
        apart, plan = plan_of(*case)
        assert plan.prompts is not None
        counts = plan.prompts.replicas, plan.replicas
        assert apart.state_of(plan, *counts, "seconds") is not None  # all that comes is done
        search, prompts = apart.search, (plan.prompts.engine, plan.prompts.replicas)
        prover = Prover(
            search.builder,
            plan.engine,
            plan.replicas,
            search.traffic,
            plan.middle.running,
            seeds=1,
            prompts=prompts,
        )
        (run,) = prover.at("seconds").runs["seconds"]
        for metric, percentile in ALLOWED:
            simulated = run.time(metric, percentile)
            estimated = plan.middle.time(metric, percentile)
            sizes[metric, percentile].append(abs(estimated / simulated - 1))
    for key, (largest, mean) in ALLOWED.items():
        assert max(sizes[key]) <= largest, (key, sizes[key])
        assert fmean(sizes[key]) <= mean, (key, sizes[key])


def test_too_much_for_either_kind_is_too_much() -> None:
    traffic = {"rate": 60.0, "input": 1000, "output": 200}
    for counts in ((1, 9), (9, 1)):
        apart, plan = plan_of("llama-3.1-8b", {}, {"seqs": 64}, counts, traffic)
        assert apart.state_of(plan, *counts, "seconds") is None
    apart, plan = plan_of("llama-3.1-8b", {}, {"seqs": 64}, (9, 9), traffic)
    assert apart.state_of(plan, 9, 9, "seconds") is not None


def test_users_without_a_place_wait_for_their_second_token() -> None:
    """Of 50 users 32 have a place where answers are written: the others' prompts are computed."""
    traffic = {"users": 50, "input": 1000, "output": 200}
    one, other = ({"gpu": "l40s", "seqs": 32, "budget": budget} for budget in (512, 2048))
    apart, plan = plan_of("llama-3.1-8b", one, other, (1, 1), traffic)
    assert plan.prompts is not None
    running, prompts = plan.middle.running, (plan.prompts.engine, 1)
    builder, asked = apart.search.builder, apart.search.traffic
    prover = Prover(builder, plan.engine, 1, asked, running, seeds=1, prompts=prompts)
    (run,) = prover.at("seconds").runs["seconds"]
    assert plan.middle.rate == pytest.approx(run.rate, rel=0.1)
    for metric, percentile in ALLOWED:
        simulated = run.time(metric, percentile)
        assert plan.middle.time(metric, percentile) == pytest.approx(simulated, rel=0.35)
    # Without those that wait a token takes 34 ms.
    assert plan.middle.tpot.mean > 0.05


def test_users_wait_for_their_prompts_where_those_are_what_is_full() -> None:
    traffic = {"users": 100, "input": 1000, "output": 100}
    prompts = {"gpu": "l40s", "seqs": 32, "budget": 512}
    _, plan = plan_of("llama-3.1-8b", prompts, {"seqs": 128, "budget": 2048}, (1, 1), traffic)
    state = plan.middle
    assert state.rate * state.e2e.at(None) == pytest.approx(100, rel=0.02)
    assert state.ttft.mean > 0.8 * state.e2e.mean
    assert state.tpot.mean < 0.01


def test_a_slow_link_makes_later_tokens_come_later() -> None:
    traffic = {"rate": 1.0, "input": 2000, "output": 100}
    times = []
    for bandwidth in (100.0, 5.0):
        limits = {"transfer_bandwidth": bandwidth}
        apart = SplitSearch(search_for("llama-3.1-8b", traffic, limits=limits))
        plan = apart.plan(engine(), 1, engine(), 1)
        times.append([plan.times(Goal(metric, None, 1.0))[1] for metric in ("ttft", "e2e")])
    # 2,000 tokens of 131 kB: 2.6 ms or 52 ms.
    assert times[0][0] == times[1][0]
    assert times[1][1] - times[0][1] == pytest.approx(0.05, rel=0.25)


def test_users_make_as_many_requests_as_their_answers_take() -> None:
    traffic = {"users": 200, "input": 500, "output": 200, "think_time": 5.0}
    _, plan = plan_of("llama-3.1-8b", {}, {}, (1, 1), traffic)
    state = plan.middle
    assert state.rate * (5.0 + state.e2e.at(None)) == pytest.approx(200, rel=0.02)
