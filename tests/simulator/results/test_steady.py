"""Protects: the verdict on a run, and its throughput between ramp and drain."""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulator.scenarios import runs, scenario
from twostroke.simulator.results.run import Run
from twostroke.simulator.simulate import simulate
from twostroke.simulator.sweep import vary

LENGTHS = {"workload": "random", "input_len": 512, "output_len": 64, "range_ratio": 0.5}


def run_at(rate: float | None, **workload: Any) -> Run:
    (run,) = runs(**LENGTHS, rate=rate, **workload)
    return run


def capacity() -> float:
    """Requests a second that a closed loop of as many clients as may run gets through."""
    loop = {"rate": None, "arrivals": "closed", "concurrency": 256, "num_requests": 2000}
    (run,) = runs(**LENGTHS, **loop)
    assert run.summary.steady.request_throughput is not None
    return run.summary.steady.request_throughput


def test_a_rate_above_what_can_be_served_is_overloaded_and_one_below_is_not() -> None:
    most = capacity()
    verdicts = [
        run_at(share * most, num_requests=2000, seed=seed).summary.steady.verdict
        for share in (0.5, 0.8, 1.3, 2.0)
        for seed in (0, 1)
    ]
    assert verdicts == ["stable"] * 4 + ["overloaded"] * 4


def test_throughput_of_an_overloaded_run_is_what_the_deployment_sustains() -> None:
    """Over the whole run it is less: the batch fills and empties."""
    most = capacity()
    summary = run_at(1.5 * most, num_requests=1500).summary
    steady = summary.steady.output_throughput
    assert steady is not None and steady == pytest.approx(64 * most, rel=0.05)
    assert summary.output_throughput < steady


def test_a_closed_loop_of_more_clients_than_may_run_is_backlogged() -> None:
    flags = {"max_num_seqs": "8"}
    loop = scenario(**LENGTHS, rate=None, arrivals="closed", concurrency=16, num_requests=200)
    assert simulate(vary(loop, flags)).summary.steady.verdict == "backlogged"
    assert simulate(vary(loop, {"max_num_seqs": "16"})).summary.steady.verdict == "stable"


def test_all_at_once_has_no_steady_window() -> None:
    few, many = (run_at(None, num_requests=number) for number in (4, 600))
    assert few.summary.steady.request_throughput is None
    assert (few.summary.steady.verdict, many.summary.steady.verdict) == ("stable", "backlogged")


def test_a_short_run_does_not_tell() -> None:
    """Twice what can be served looks served at once, if few requests come."""
    short, long = (run_at(2 * capacity(), num_requests=number) for number in (40, 2000))
    assert (short.summary.steady.verdict, long.summary.steady.verdict) == (
        "undecided",
        "overloaded",
    )


def test_far_too_much_shows_before_the_ramp_has_ended() -> None:
    """Many times what can be served: most of what comes waits. Of clients in turn it does not."""
    flood = run_at(10 * capacity(), num_requests=2000).summary.steady
    assert flood.verdict == "overloaded" and flood.end < 2 * flood.start
    assert flood.left_waiting > 1000 and "as the last one comes" in flood.describe()
    loop = scenario(**LENGTHS, rate=None, arrivals="closed", concurrency=64, num_requests=100)
    steady = simulate(vary(loop, {"max_num_seqs": "8"})).summary.steady
    assert steady.verdict != "overloaded"
    bursts = {"rate": 20.0, "arrivals": "burst", "burst_size": 200, "num_requests": 400}
    (run,) = runs(workload="random", input_len=512, output_len=2000, **bursts)
    assert run.summary.steady.verdict == "undecided"  # neither has ended


def test_more_under_way_is_no_queue() -> None:
    """Of few requests more may come than end by chance, while none waits."""
    lengths = {"workload": "random", "input_len": 500, "output_len": 100}
    flags = {"model": "deepseek-v3", "gpu": "h200", "data_parallel_size": "16"}
    short, longer = (
        simulate(
            vary(
                scenario(**lengths, rate=4.0, num_requests=number),
                {**flags, "enable_expert_parallel": "true"},
            )
        ).summary.steady
        for number in (60, 240)
    )
    assert short.arrived > 1.2 * short.ended and short.waiting_share < 0.5
    assert (short.verdict, longer.verdict) == ("undecided", "stable")
    assert "few wait: too soon to tell" in short.describe()


def test_a_run_that_served_nothing_is_no_stable_one() -> None:
    (run,) = runs(workload="random", input_len=200_000, rate=20.0, num_requests=4)
    steady = run.summary.steady
    assert steady.verdict == "undecided"
    assert steady.describe() == "Undecided: no request has ended"
