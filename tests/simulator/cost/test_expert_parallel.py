"""Models that are split by data, layers and experts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from twostroke.core.config import CacheConfig, SchedulerConfig
from twostroke.core.errors import ConfigError
from twostroke.model_spec.public_models import find_model
from twostroke.simulator.cost.configuration import Dtypes, Parallel
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
from twostroke.simulator.deployment.options import DeploymentOptions
from twostroke.timing.step_shape import StepShape

DECODE = StepShape(64, 64_000, (), 64)


def cost(model: str = "qwen3-235b-a22b", **parallel: Any) -> RooflineCostModel:
    return RooflineCostModel(
        load_hardware("h200"),
        find_model(model),
        Parallel(**parallel),
        Dtypes(weights="fp8"),
        load_efficiencies("h200", link="NVLink 4"),
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
    assert batch_of_stage(shape, 2) == StepShape(5, 500, ((5, 4),), 5)
    assert num_tokens(batch_of_stage(shape, 2)) == 10


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
