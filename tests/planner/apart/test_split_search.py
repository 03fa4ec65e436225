"""Protects: pairs of engines with as few replicas as formulas allow, within the limits."""

from __future__ import annotations

from typing import Any

import pytest

from tests.planner.questions import engine, planned, search_for
from twostroke.core.errors import ConfigError
from twostroke.planner.apart.split_scenario import part_of_pools, pool_text
from twostroke.planner.apart.split_search import SplitSearch, can_be_apart
from twostroke.planner.plan import Found, Plan
from twostroke.planner.progress import PlanProgress
from twostroke.planner.reasons import ROLES, binding
from twostroke.simulator.deployment.fleet_options import FleetOptions

RATE = 60.0
TRAFFIC = {"rate": RATE, "input": 1500, "output": 200}


def fewest(**limits: Any) -> tuple[SplitSearch, Plan | None]:
    apart = SplitSearch(search_for(traffic=TRAFFIC, limits=limits))
    return apart, apart.fewest(engine(), engine(), "high", RATE)


def test_one_replica_fewer_of_either_kind_is_too_few() -> None:
    apart, plan = fewest()
    assert plan is not None and plan.prompts is not None
    counts = plan.prompts.replicas, plan.replicas
    assert counts[0] > 1 and counts[1] > 1
    goals = apart.search.goals
    assert not plan.states["high"].misses(goals)
    for x, y in ((counts[0] - 1, counts[1]), (counts[0], counts[1] - 1)):
        state = apart.state_of(plan, x, y, "high")
        assert state is None or state.misses(goals)


@pytest.mark.parametrize(
    "limits",
    [{"max_replicas": 2}, {"budget": 5.0}, {"max_watts": 1000.0}, {"at_hand": "h100=2"}],
)
def test_limits_hold_for_both_kinds_together(limits: dict[str, Any]) -> None:
    _, plan = fewest()
    assert plan is not None and plan.devices > 2
    assert fewest(**limits)[1] is None


def test_pairs_are_found_of_two_kinds_of_devices() -> None:
    search = search_for(traffic=TRAFFIC, limits={"tp": "1"})
    found = Found()
    SplitSearch(search).run(found, PlanProgress())
    kinds = {(plan.prompts.engine.gpu, plan.engine.gpu) for plan in found.plans if plan.prompts}
    assert any(first != second for first, second in kinds)
    costs = [plan.cost_per_hour for plan in found.plans]
    assert costs == sorted(costs)
    for plan in found.plans:
        assert not plan.states["high"].misses(search.goals)
        assert plan.prompts and plan.prompts.engine.kv_cache == plan.engine.kv_cache


def test_states_of_recurrent_layers_do_not_move() -> None:
    assert can_be_apart(search_for(limits={"pools": "search"}))
    assert not can_be_apart(search_for(limits={"pools": "together"}))
    assert not can_be_apart(search_for("qwen3-next-80b-a3b", limits={"pools": "search"}))
    with pytest.raises(ConfigError, match="recurrent"):
        can_be_apart(search_for("qwen3-next-80b-a3b", limits={"pools": "apart"}))


def test_a_plan_of_two_kinds_is_proven_and_explained() -> None:
    answer = planned(
        traffic={"rate": 8.0, "input": 1500, "output": 60},
        limits={"pools": "apart", "gpus": "h100", "tp": "1", "kv_cache_dtype": "auto"},
        output={"simulate": 1, "seeds": 1},
    )
    assert answer.best is not None
    plan = answer.best.plan
    assert plan.prompts is not None and plan.proof is not None
    assert plan.proof.meets(answer.goals, pessimistic=True)
    assert len(answer.memory) == 2 and answer.middle is not None
    bound = binding(answer.search, plan)
    assert any(role in bound.text for role in ROLES) and bound.constraint


def test_pools_that_are_simulated_have_no_less_to_do() -> None:
    assert part_of_pools(6, 4) == (3, 2, 0.5)
    assert part_of_pools(1, 1) == (1, 1, 1.0)
    for counts in ((11, 7), (100, 3), (17, 17), (13, 14)):
        x, y, share = part_of_pools(*counts)
        assert share >= x / counts[0] and share >= y / counts[1]
        assert 1 <= x <= 6 and 1 <= y <= 6


def test_a_pool_is_written_as_the_simulator_reads_it() -> None:
    text = pool_text(engine(tp=2, pp=2, seqs=64), 3)
    pools = FleetOptions(prefill=text, decode=text).pools()
    assert pools["prefill"] == {
        "gpu": "h100-sxm",
        "tp": 2,
        "replicas": 3,
        "pipeline_parallel_size": 2,
        "max_num_seqs": 64,
        "max_num_batched_tokens": 4096,
    }
