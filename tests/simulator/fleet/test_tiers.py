"""Protects: the simulator moves blocks as the live engine does, and takes the time for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from twostroke.core.config import CacheConfig, SchedulerOptions
from twostroke.core.kv_tier_config import KVTierConfig
from twostroke.simulator.deployment.options import DeploymentOptions
from twostroke.simulator.results.run import Run
from twostroke.simulator.scenario import Scenario
from twostroke.simulator.simulate import simulate
from twostroke.simulator.workloads.options import SimulatedWorkloadOptions


def run(tiers: KVTierConfig, **deployment: float) -> Run:
    """More requests than the KV cache has room for, all at once."""
    return simulate(
        Scenario(
            deployment=DeploymentOptions(
                model="llama-3.1-8b",
                max_model_len=4096,
                **deployment,  # type: ignore[arg-type]
            ),
            workload=SimulatedWorkloadOptions(
                workload="random", input_len=300, output_len=900, num_requests=24
            ),
            scheduler=SchedulerOptions(),
            cache=CacheConfig(kv_cache_memory=2**30),
            tiers=tiers,
        )
    )


@pytest.fixture(scope="module")
def recomputed() -> Run:
    return run(KVTierConfig())


def seconds(result: Run) -> float:
    return result.summary.duration


def test_swap_over_a_fast_link_is_faster_than_computing(recomputed: Run) -> None:
    assert recomputed.summary.preemptions
    assert seconds(run(KVTierConfig(preemption="swap"))) < seconds(recomputed)


def test_auto_computes_where_the_link_is_slow(recomputed: Run) -> None:
    """It learns that from the first swaps; so it is close to the better way."""
    slow = {"host_bandwidth": 0.01}
    swapped = seconds(run(KVTierConfig(preemption="swap"), **slow))
    assert swapped > 1.1 * seconds(recomputed)
    assert seconds(run(KVTierConfig(preemption="auto"), **slow)) < swapped


def test_the_same_question_has_the_same_answer() -> None:
    tiers = KVTierConfig(preemption="auto", kv_host_memory=2**30, kv_disk="x")
    assert seconds(run(tiers)) == seconds(run(replace(tiers, kv_disk="y")))
