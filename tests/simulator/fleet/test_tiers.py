"""Protects: the simulator moves blocks as the live engine does, and takes the time for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from twostroke.core.config import CacheConfig, SchedulerOptions
from twostroke.core.kv_tier_config import BlockTransfer, KVTierConfig
from twostroke.core.request import BlockKey
from twostroke.core.step import StepPlan, StepResult
from twostroke.engine.executor import ExecutorInfo
from twostroke.simulator.deployment.options import DeploymentOptions
from twostroke.simulator.fleet.tiers import Bandwidths, SimulatedTiers
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


def test_transfers_of_one_request_add_up_and_fail_together() -> None:
    """A hybrid loads blocks and the parts of a state; half of a load is none."""
    info = ExecutorInfo(
        model_id="tiny",
        vocab_size=8,
        max_model_len=64,
        num_blocks=8,
        block_size=4,
        kv_bytes_per_token=4,
    )
    config = KVTierConfig(kv_host_memory=16 * info.block_bytes)
    tiers = SimulatedTiers(config, info, Bandwidths(host=info.block_bytes, disk=1.0))
    tiers.begin(
        StepPlan(step=0, time=0.0, block_saves=[BlockTransfer("", [0] * 5, [*range(5)], "host")]),
        0.0,
    )

    def load(request_id: str, parts: list[int]) -> StepResult:
        both: list[list[BlockKey]] = [[0, 1, 2], [*parts]]
        loads = [BlockTransfer(request_id, [0] * len(keys), keys, "host") for keys in both]
        tiers.begin(StepPlan(step=1, time=0.0, block_loads=loads), 0.0)
        result = StepResult()
        tiers.end(result, 1e6)
        return result

    whole = load("whole", [3, 4])
    (change,) = whole.tier_changes
    assert whole.loaded == ["whole"] and not whole.failed_loads
    assert (change.num_loaded, change.load_seconds) == (5, 5.0)
    half = load("half", [7])
    assert half.failed_loads == ["half"] and not half.loaded


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
