"""What a report says is what happened: percentiles, goodput, utilisation, cost, metrics."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.simulator.fleet.test_replica import live_engine, mixed_workload
from tests.simulator.fleets import make_fleet
from twostroke.core.config import CacheConfig, SchedulerConfig, SchedulerOptions
from twostroke.observability.latency import PERCENTILES, LatencyDistribution, meets_targets
from twostroke.observability.metrics import EngineMetrics
from twostroke.simulator.deployment.options import DeploymentOptions
from twostroke.simulator.fleet.result import RequestResult
from twostroke.simulator.results.distributions import exact_sum, weighted_distribution
from twostroke.simulator.results.run import Run
from twostroke.simulator.scenario import Scenario
from twostroke.simulator.simulate import simulate
from twostroke.simulator.sweep import vary
from twostroke.simulator.workloads.options import SimulatedWorkloadOptions


def run_of(
    *, model: str = "llama-3.2-1b", scheduler: SchedulerOptions | None = None, **workload: Any
) -> Run:
    fields = {
        "workload": "random",
        "num_requests": 8,
        "input_len": 100,
        "output_len": 20,
        **workload,
    }
    return simulate(
        Scenario(
            deployment=DeploymentOptions(model=model, price_per_hour=3.6),
            workload=SimulatedWorkloadOptions(**fields),
            scheduler=scheduler or SchedulerOptions(),
            targets={"ttft": 0.5, "tpot": 0.05},
        )
    )


@given(st.lists(st.tuples(st.floats(0, 100), st.integers(0, 5)), max_size=30))
def test_weighted_percentiles_are_those_of_the_expanded_list(
    pairs: Sequence[tuple[float, int]],
) -> None:
    values = np.array([value for value, _ in pairs], dtype=np.float64)
    weights = np.array([weight for _, weight in pairs], dtype=np.int64)
    expected = LatencyDistribution.of(
        [value for value, weight in pairs for _ in range(weight)], PERCENTILES
    )
    distribution = weighted_distribution(values, weights)
    assert distribution.mean == pytest.approx(expected.mean)
    assert distribution.percentiles == pytest.approx(expected.percentiles)


@given(st.lists(st.floats(-1e300, 1e300, allow_subnormal=True), max_size=40))
def test_a_sum_in_whole_numbers_is_rounded_once(values: list[float]) -> None:
    assert exact_sum(np.array(values, dtype=np.float64)) == math.fsum(values)


def test_goodput_counts_those_that_met_every_target() -> None:
    request = RequestResult(0, 0, 1.0, 1.1, 1.4, 2.4, 10, 11, 0, 0)
    assert request.ttft == pytest.approx(0.4)
    assert request.tpot == pytest.approx(0.1)
    assert meets_targets(request, {}) and meets_targets(
        request, {"ttft": 0.41, "tpot": 0.11, "e2el": 1.5}
    )
    assert not meets_targets(request, {"ttft": 0.41, "tpot": 0.09})


def test_token_counts_and_gaps_add_up() -> None:
    run = run_of()
    assert (run.summary.completed, run.summary.input_tokens, run.summary.output_tokens) == (
        8,
        800,
        160,
    )
    assert int(run.columns.new_tokens.sum()) == 160
    # Every token but each request's first has a gap before it.
    assert int(run.columns.gaps.sum()) + len(run.columns.other_gaps) == 152
    itl, tpot = run.summary.latencies["itl"], run.summary.latencies["tpot"]
    assert itl.mean == pytest.approx(tpot.mean)  # equal lengths weigh equally


def test_gaps_across_preemptions_add_up_too() -> None:
    """Between its first and last token a request's gaps fill all of its time, left out or not."""
    scenario = Scenario(
        deployment=DeploymentOptions(model="llama-3.2-1b"),
        workload=SimulatedWorkloadOptions(
            workload="random", num_requests=12, input_len=300, output_len=600
        ),
    )
    run = simulate(vary(scenario, {"kv_cache_memory": "200MiB", "max_num_seqs": "12"}))
    assert run.summary.preemptions > 0
    assert len(run.columns.other_gaps) > 0
    gaps = math.fsum((run.columns.duration * run.columns.gaps).tolist()) + math.fsum(
        run.columns.other_gaps
    )
    assert gaps == pytest.approx(math.fsum(r.finish - r.first_token for r in run.result.requests))


def test_utilisation_of_a_lonely_decoder_is_bandwidth() -> None:
    """One request at a time reads all weights for each token: bytes decide, arithmetic idles."""
    run = run_of(
        model="llama-3.1-8b", arrivals="closed", concurrency=1, num_requests=2, output_len=200
    )
    use, sheet = run.summary.use, run.deployment.hardware
    assert 0.5 < use.mbu < 1
    assert use.mfu < 0.02
    assert use.busy == pytest.approx(1.0)
    assert max(use.binding, key=lambda name: use.binding[name]) == "memory"
    assert sum(use.binding.values()) == pytest.approx(1.0)
    # By hand: what 398 decoding steps and two prompts read, over the time they took.
    weights = run.deployment.weight_bytes - 128256 * 4096 * 2
    assert use.mbu == pytest.approx(
        400 * weights / (run.summary.duration * sheet.memory_bandwidth), rel=0.02
    )


def test_utilisation_of_prompts_is_arithmetic() -> None:
    run = run_of(model="llama-3.1-8b", num_requests=16, input_len=4000, output_len=1)
    model = run.deployment.model
    flops = 16 * (model.prefill_flops(4000))
    peak = run.deployment.hardware.dense_flops["bf16"]
    assert run.summary.use.mfu == pytest.approx(flops / (run.summary.duration * peak), rel=0.01)
    assert 0.3 < run.summary.use.mfu < 1


def test_cost_is_time_times_price() -> None:
    run = run_of()
    assert run.summary.dollars == pytest.approx(3.6 / 3600 * run.summary.duration)
    assert run.summary.dollars_per_million_tokens == pytest.approx(1e6 * run.summary.dollars / 960)


def test_metrics_are_those_of_the_live_engine() -> None:
    """Same names, labels, buckets and counts as the live engine counts by the token."""
    scheduler = SchedulerConfig(max_num_batched_tokens=40, max_num_seqs=6)
    engine = live_engine(mixed_workload(), scheduler, 40)
    live = parse(engine.metrics.render()[0].decode())
    metrics = EngineMetrics("pilot")
    fleet, (replica,) = make_fleet(mixed_workload(), scheduler, num_blocks=40, observers=[metrics])
    fleet.run()
    metrics.describe_cache(40, replica.kv.block_size, CacheConfig())
    simulated = parse(metrics.render()[0].decode())
    assert simulated.keys() == live.keys()
    for name, value in live.items():
        assert simulated[name] == pytest.approx(value), name
    assert live['vllm:generation_tokens_total{engine="0",model_name="pilot"}'] > 0


def parse(text: str) -> dict[str, float]:
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    pairs = [line.rsplit(" ", 1) for line in lines]
    return {name: float(value) for name, value in pairs if "_created" not in name}
