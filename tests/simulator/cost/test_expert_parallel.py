"""Models that are split by data, layers and experts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from twostroke.core.config import CacheConfig, SchedulerConfig
from twostroke.core.errors import ConfigError
from twostroke.model_spec.public_models import find_model
from twostroke.simulator.cost.configuration import Drafting, Dtypes, Parallel
from twostroke.simulator.cost.cost_model import RooflineCostModel
from twostroke.simulator.cost.efficiencies import load_efficiencies
from twostroke.simulator.cost.expert_parallel import (
    batch_of_stage,
    num_tokens,
    share_of_group,
)
from twostroke.simulator.cost.hardware_sheet import load_hardware
from twostroke.simulator.deployment.deployment import deploy
from twostroke.simulator.deployment.memory import device_weight_bytes
from twostroke.simulator.deployment.options import MAX_LENGTH, DeploymentOptions
from twostroke.simulator.scenario import Scenario
from twostroke.simulator.simulate import simulate
from twostroke.simulator.workloads.options import SimulatedWorkloadOptions
from twostroke.timing.step_shape import StepShape

DECODE = StepShape(64, 64_000, (), 64)


DRAFT, FP8 = find_model("llama-3.2-1b"), Dtypes(weights="fp8")


def cost(
    model: str = "qwen3-235b-a22b",
    dtypes: Dtypes = FP8,
    drafting: Drafting | None = None,
    **parallel: Any,
) -> RooflineCostModel:
    return RooflineCostModel(
        load_hardware("h200"),
        find_model(model),
        Parallel(**parallel),
        dtypes,
        load_efficiencies("h200", link="NVLink 4"),
        drafting=drafting,
    )


def seconds(shape: StepShape, model: str = "qwen3-235b-a22b", **parallel: Any) -> float:
    return cost(model, **parallel).step(shape).seconds


def test_prompts_go_whole_to_the_idlest_group() -> None:
    shape = StepShape(9, 900, ((10, 0), (40, 8), (30, 0), (20, 0)), 13)
    assert share_of_group(shape, 2) == StepShape(5, 500, ((40, 8), (10, 0)), 7)
    assert share_of_group(shape, 1) == shape
    assert share_of_group(StepShape(1, 9, (), 1), 8) == StepShape(1, 9, (), 1)


def test_a_stage_has_its_part_of_every_prompt() -> None:
    shape = StepShape(9, 900, ((10, 4),), 10)
    assert batch_of_stage(shape, 2) == StepShape(5, 500, ((5, 6),), 5)
    assert num_tokens(batch_of_stage(shape, 2)) == 10


def test_stages_compute_all_pairs_of_a_prompt() -> None:
    ((piece, before),) = batch_of_stage(StepShape(0, 0, ((8000, 100),), 1), 4).prefill
    assert 4 * (piece * before + piece**2 // 2) == 8000 * 100 + 8000**2 // 2


@pytest.mark.parametrize("drafting", [Drafting(share=0.25), Drafting(model=DRAFT)])
def test_drafts_are_divided_once(drafting: Drafting) -> None:
    parallel = Parallel(pipeline=2, data=2)
    drafts = cost("llama-3.1-70b", drafting=drafting, pipeline=2, data=2)
    shape = DECODE._replace(drafts=128, draft_rounds=2)
    plain = StepShape(64, 64_000, (), 64)
    if drafting.model is None:
        once = 0.25 * cost("llama-3.1-70b", pipeline=2, data=2).step(plain).seconds
    else:
        once = cost("llama-3.2-1b", Dtypes(), pipeline=2, data=2).step(plain).seconds
    assert drafts.parallel == parallel
    assert drafts.step(shape).drafting == pytest.approx(2 * once)


def test_one_device_is_the_same_however_it_is_called() -> None:
    plain = seconds(DECODE, "qwen3-30b-a3b")
    assert seconds(DECODE, "qwen3-30b-a3b", expert=True) == pytest.approx(plain, rel=1e-12)


def test_groups_of_a_dense_model_are_so_many_models() -> None:
    one = seconds(StepShape(16, 16_000, (), 16), "llama-3.1-8b")
    assert seconds(DECODE, "llama-3.1-8b", data=4) == pytest.approx(one, rel=1e-12)


def test_groups_read_less_of_the_cache_and_pay_the_way_to_experts() -> None:
    long = StepShape(64, 64 * 30_000, (), 64)
    assert seconds(long, tensor=1, data=8, expert=True) < seconds(long, tensor=8)
    short = StepShape(8, 8 * 100, (), 8)
    assert seconds(short, tensor=1, data=8, expert=True) > seconds(short, tensor=8)


def test_a_lone_prompt_keeps_one_group_busy_and_all_experts() -> None:
    prompt = StepShape(0, 0, ((4000, 0),), 1)
    eight = StepShape(0, 0, ((4000, 0),) * 8, 8)
    lone = seconds(prompt, data=8, expert=True)
    assert seconds(prompt, tensor=8) < lone < seconds(eight, data=8, expert=True)


def test_stages_pay_moves_and_gain_throughput() -> None:
    one = StepShape(1, 1000, (), 1)
    assert seconds(one, tensor=4, pipeline=2) > seconds(one, tensor=4)
    prompts = StepShape(0, 0, ((8000, 0),), 1)
    ratio = seconds(prompts, tensor=4, pipeline=2) / seconds(prompts, tensor=4)
    assert 0.45 < ratio < 0.7


def test_weights_add_up_over_devices() -> None:
    model = find_model("qwen3-235b-a22b")
    whole = device_weight_bytes(model, "fp8", Parallel())
    experts = sum(
        layer.count * layer.experts.count * sum(x.rank_parameters(1) for x in layer.experts.linears)
        for layer in model.layers
        if layer.experts
    )
    for parallel in (Parallel(data=8), Parallel(data=8, expert=True)):
        each = device_weight_bytes(model, "fp8", parallel)
        assert 8 * each == pytest.approx(8 * (whole - experts) + experts, rel=1e-3)
    assert device_weight_bytes(model, "fp8", Parallel(pipeline=2)) == pytest.approx(whole / 2)


def test_a_replica_has_the_blocks_and_places_of_its_groups() -> None:
    options = DeploymentOptions(model="qwen3-30b-a3b", gpu="h200")
    scheduler = SchedulerConfig(max_num_seqs=64, max_num_batched_tokens=2048)
    split = replace(options, data_parallel_size=4, enable_expert_parallel=True)
    four = deploy(split, CacheConfig(), scheduler)
    assert four.info.num_blocks % 4 == 0
    assert four.info.num_blocks > 4 * deploy(options, CacheConfig(), scheduler).info.num_blocks
    assert four.scheduler.max_num_seqs == 256
    assert (four.scheduler.max_num_batched_tokens, four.scheduler.max_prefill_chunk) == (8192, 2048)


def test_groups_have_states_of_their_own_and_no_more_blocks_than_are_simulated() -> None:
    options = DeploymentOptions(model="falcon-h1-7b", gpu="h200")
    one = deploy(options, CacheConfig(), SchedulerConfig())
    four = deploy(replace(options, data_parallel_size=4), CacheConfig(), SchedulerConfig())
    assert four.info.num_state_slots == 4 * one.info.num_state_slots
    many = DeploymentOptions(model="qwen3-30b-a3b", data_parallel_size=9999)
    assert deploy(many, CacheConfig(), SchedulerConfig()).info.num_blocks == MAX_LENGTH


@pytest.mark.parametrize(
    "split",
    [{"data_parallel_size": 4, "enable_expert_parallel": True}, {"pipeline_parallel_size": 4}],
)
def test_no_more_bytes_are_read_than_memory_gives(split: dict[str, Any]) -> None:
    """Idle experts are not read; each batch of a pipeline reads its weights."""
    deployment = DeploymentOptions(model="qwen3-30b-a3b", **split)
    workload = SimulatedWorkloadOptions(
        workload="random", num_requests=16, input_len=50, output_len=100, rate=1000.0
    )
    use = simulate(Scenario(deployment=deployment, workload=workload)).summary.use
    assert 0.25 < use.mbu < 0.9


def test_what_a_model_does_not_allow_is_refused() -> None:
    cache, scheduler = CacheConfig(), SchedulerConfig()
    with pytest.raises(ConfigError, match="has no experts"):
        deploy(DeploymentOptions(enable_expert_parallel=True), cache, scheduler)
    sixteen = DeploymentOptions(model="mixtral-8x7b", tp=8, data_parallel_size=2)
    with pytest.raises(ConfigError, match="8 experts cannot be dealt out over 16 devices") as info:
        deploy(replace(sixteen, enable_expert_parallel=True), cache, scheduler)
    assert "--enable-expert-parallel" in str(info.value.hint)
    with pytest.raises(ConfigError, match="has 32 layers"):
        deploy(DeploymentOptions(pipeline_parallel_size=33), cache, scheduler)
