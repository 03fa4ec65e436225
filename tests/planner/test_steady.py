"""Protects: the formulas say what the simulator says, on a sample of engines and loads."""

from __future__ import annotations

from statistics import fmean
from typing import Any

import pytest

from tests.planner.questions import engine, search_for
from twostroke.planner.goals import Metric
from twostroke.planner.proof import Prover
from twostroke.planner.steady import TimeSpread, closed_loop, open_loop

# Model, engine, traffic; the load is a share of what a replica can end, or its users.
SAMPLE: list[tuple[str, dict[str, Any], dict[str, Any], float | int]] = [
    ("llama-3.1-8b", {}, {"input": 1000, "output": 200}, 0.4),
    ("llama-3.1-8b", {"budget": 1024}, {"input": 1000, "output": 200}, 0.7),
    ("llama-3.1-8b", {"gpu": "l40s", "seqs": 64}, {"input": 300, "output": 300}, 0.6),
    ("llama-3.1-8b", {"gpu": "l4", "weights": "fp8"}, {"input": 900, "prefix": 600}, 0.5),
    ("llama-3.1-70b", {"tp": 4, "weights": "fp8"}, {"input": 1500, "output": 300}, 0.6),
    ("qwen3-30b-a3b", {"weights": "fp8"}, {"input": 1000, "output": 300}, 0.5),
    ("llama-3.1-70b", {"tp": 4, "pp": 2}, {"input": 1000, "output": 200}, 0.5),
    ("llama-3.1-8b", {}, {"input": 1000, "output": 200}, 24),
    ("llama-3.1-8b", {"gpu": "l40s"}, {"input": 600, "output": 200, "think_time": 10.0}, 60),
    ("llama-3.1-8b", {"seqs": 64}, {"input": 1000, "output": 200}, 65),
]
EXPERTS_APART: tuple[str, dict[str, Any], dict[str, Any], float] = (
    *("qwen3-30b-a3b", {"dp": 4, "ep": True, "seqs": 64}, {"input": 1000, "output": 300}, 0.5),
)
# By metric and percentile: the largest error of one, and the mean of all.
ALLOWED: dict[tuple[Metric, float], tuple[float, float]] = {
    ("ttft", 50.0): (0.45, 0.20),
    ("ttft", 95.0): (0.60, 0.30),
    ("tpot", 50.0): (0.15, 0.08),
    ("tpot", 95.0): (0.40, 0.20),
    ("e2e", 50.0): (0.15, 0.08),
    ("e2e", 95.0): (0.35, 0.18),
}


def errors_of(
    model: str, changes: dict[str, Any], lengths: dict[str, Any], load: float | int
) -> dict[tuple[Metric, float], float]:
    """Estimated over simulated, less 1."""
    volume = {"users": load} if isinstance(load, int) else {"rate": 1.0}
    search = search_for(model, lengths | volume)
    one = engine(**changes)
    limit, curve = search.limit(one), search.builder.curve(one)
    traffic = search.traffic
    if traffic.users is None:
        rate = load * curve.at(limit, "seconds").rate
        traffic = traffic.times(rate)
        state = open_loop(curve, limit, rate, "seconds")
        assert state is not None
    else:
        state = closed_loop(curve, limit, traffic.users, traffic.think_time, "seconds")
    proof = Prover(search.builder, one, 1, traffic, 2 * state.running, seeds=1).at("seconds")
    (run,) = proof.runs["seconds"]
    assert not run.overloaded
    return {
        (metric, percentile): state.time(metric, percentile) / run.time(metric, percentile) - 1
        for metric, percentile in ALLOWED
    }


def test_formulas_agree_with_the_simulator() -> None:
    found = [errors_of(*case) for case in SAMPLE]
    for key, (largest, mean) in ALLOWED.items():
        sizes = [abs(errors[key]) for errors in found]
        assert max(sizes) <= largest, (key, sizes)
        assert fmean(sizes) <= mean, (key, sizes)


@pytest.mark.xfail(
    strict=True,
    reason="formulas say 1.88 times the simulated P95 of TTFT; why is not found yet",
)
def test_formulas_agree_where_a_prompt_of_experts_starts_late() -> None:
    """A miss that is known: P95 of TTFT, since what starts a prefill has a time of its own."""
    errors = errors_of(*EXPERTS_APART)
    assert all(abs(errors[key]) <= largest for key, (largest, _) in ALLOWED.items())


def test_more_requests_take_longer_until_none_end() -> None:
    search, one = search_for(), engine()
    limit, curve = search.limit(one), search.builder.curve(one)
    most = curve.at(limit, "seconds").rate
    states = [open_loop(curve, limit, share * most, "seconds") for share in (0.1, 0.4, 0.7, 0.95)]
    assert all(state is not None for state in states)
    metrics: tuple[Metric, ...] = ("tpot", "ttft", "e2e")
    for metric in metrics:
        times = [state.time(metric, 95.0) for state in states if state is not None]
        assert times == sorted(times)
    assert open_loop(curve, limit, 1.05 * most, "seconds") is None


def test_users_beyond_the_places_wait() -> None:
    search, one = search_for(traffic={"users": 500}), engine(seqs=64)
    limit, curve = search.limit(one), search.builder.curve(one)
    few = closed_loop(curve, limit, 60, 0.0, "seconds")
    many = closed_loop(curve, limit, 500, 0.0, "seconds")
    assert few.running < 60.01 and many.running == pytest.approx(64)
    # Little's law over all that users wait for.
    wait = many.ttft.at(None) + many.tpot.mean * search.traffic.lengths.output
    assert many.rate * wait == pytest.approx(500, rel=0.05)
    assert many.ttft.at(50.0) > 10 * few.ttft.at(50.0)


@pytest.mark.parametrize("think_time", [0.0, 1.2])
def test_a_user_beyond_the_places_waits_for_few_answers(think_time: float) -> None:
    """It was minutes: a queue of as many as come at a rate was counted, not of those there are."""
    search, one = search_for(traffic={"users": 500}), engine(seqs=64)
    limit, curve = search.limit(one), search.builder.curve(one)
    without = closed_loop(curve, limit, 60, 0.0, "high").time("ttft", 95.0)
    for users in range(65, 100):
        state = closed_loop(curve, limit, users, think_time, "high")
        waiting = 3 * (users - limit) / state.rate
        assert state.time("ttft", 95.0) <= 1.2 * without + waiting


def test_percentiles_ascend_and_have_the_mean() -> None:
    spread = TimeSpread(2.0, 1.0)
    assert spread.at(50.0) < spread.at(None) == 2.0 < spread.at(95.0) < spread.at(99.0)
    assert TimeSpread(2.0, 0.0).at(99.0) == 2.0
    rare = TimeSpread(2.0, 1.0, rare=0.1, wait=5.0)
    assert rare.at(50.0) == spread.at(50.0) and rare.at(95.0) > spread.at(95.0)
