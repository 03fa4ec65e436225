"""Protects: experts' grouped products against a naive count of tiles, routing, expert parallel."""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from random import Random
from typing import Any

import pytest

from tests.model_spec import configs
from twostroke.model_spec.reader import parse_model
from twostroke.simulator.cost.configuration import Dtypes, Parallel
from twostroke.simulator.cost.cost_model import RooflineCostModel
from twostroke.simulator.cost.efficiencies import (
    ExpertsEfficiency,
    HostEfficiency,
    load_efficiencies,
)
from twostroke.simulator.cost.experts_cost import (
    GROUPED_TILES,
    GroupedProducts,
    busiest,
    reached_experts,
)
from twostroke.simulator.cost.hardware_sheet import load_hardware
from twostroke.timing.step_shape import StepShape

PLAIN = ExpertsEfficiency(
    compute=1.0,
    memory=1.0,
    half_tile=1000.0,
    prologue=100.0,
    waves=0.0,
    launch=1e-5,
    sharpness=20.0,
    moves=0.0,
)


def grouped(efficiency: ExpertsEfficiency = PLAIN, bandwidth: float = 1e30) -> GroupedProducts:
    return GroupedProducts(
        [(3072, 4096), (4096, 1536)],
        efficiency=efficiency,
        flops=1e15,
        bandwidth=bandwidth,
        units=1,
        weight_bytes=1.0,
    )


def naive_seconds(loads: list[int]) -> float:
    """Every group cut into tiles, for the fastest tile of each product."""
    total = PLAIN.launch
    for outputs, inputs in ((3072, 4096), (4096, 1536)):
        total += min(
            sum(ceil(load / rows) for load in loads)
            * ceil(outputs / width)
            * 2.0
            * (rows * width + PLAIN.half_tile)
            * (inputs + PLAIN.prologue)
            / 1e15
            for rows, width in GROUPED_TILES
        )
    return total


@pytest.mark.parametrize("tokens", [64, 1000, 8000])
def test_half_a_tile_of_each_group_is_empty(tokens: int) -> None:
    random = Random(tokens)
    loads = [0] * 64
    for _ in range(tokens * 4):
        loads[min(random.randrange(64), random.randrange(64))] += 1
    chosen = [load for load in loads if load]
    estimated = grouped().time(float(sum(loads)), float(len(chosen))).seconds
    assert estimated == pytest.approx(naive_seconds(chosen), rel=0.12)


def test_weights_are_read_of_experts_that_are_reached() -> None:
    products = grouped(bandwidth=1e12)
    few, many = (products.time(64.0, reached).memory for reached in (8.0, 64.0))
    assert many - few == pytest.approx(56 * (3072 * 4096 + 4096 * 1536) / 1e12, rel=0.01)


def test_copies_pass_through_memory_for_experts_elsewhere_too() -> None:
    products = grouped(replace(PLAIN, moves=2.0), bandwidth=1e12)
    here, all_ = (products.time(64.0, 8.0, copies).seconds for copies in (64.0, 512.0))
    assert all_ - here == pytest.approx(2.0 * 2.0 * 4096 * 448 / 1e12)


def test_popular_experts_are_reached_first() -> None:
    """Fewer than if all were chosen alike; all in the end, and never fewer than one token's."""
    uniform = [128 * (1 - (1 - 8 / 128) ** tokens) for tokens in (1, 16, 64)]
    reached = [reached_experts(128, 8, tokens) for tokens in (1, 16, 64)]
    assert reached[0] == pytest.approx(8, rel=0.02)
    assert all(some < alike for some, alike in zip(reached[1:], uniform[1:]))
    assert reached_experts(128, 8, 100_000) == pytest.approx(128)
    assert reached_experts(8, 8, 1) == 8


def test_the_busiest_device_has_more_than_its_share() -> None:
    assert busiest(512.0, 100.0, 128, 1) == (512.0, 100.0)
    pairs, reached = busiest(512.0, 100.0, 128, 4)
    assert 128 < pairs < 256 and 25 < reached <= 32
    assert busiest(4.0, 2.0, 128, 64)[1] >= 1


def make(*, expert: bool, ranks: int = 4, groups: int = 1) -> RooflineCostModel:
    return RooflineCostModel(
        load_hardware("h100"),
        parse_model(configs.MIXTRAL),
        Parallel(tensor=ranks, data=groups, expert=expert),
        Dtypes(),
        load_efficiencies("h100-sxm"),
    )


def test_whole_experts_on_few_devices_wait_for_the_busiest() -> None:
    """Tensor parallel devices have equal work; those with whole experts differ."""
    shape = StepShape(0, 0, ((4096, 0),), 1)
    apart, shared = (make(expert=flag).step(shape).seconds for flag in (True, False))
    assert shared < apart < 2 * shared


def test_groups_wait_for_the_busiest_device_of_all() -> None:
    """What a device has of each expert, or of experts, is that of as many tensor parallel ones."""
    shape = StepShape(0, 0, ((1024, 0),) * 4, 4)
    apart, shared = (
        make(expert=flag, ranks=1, groups=4).step(shape).seconds for flag in (True, False)
    )
    assert shared < apart < 2 * shared


def test_experts_that_no_device_has_as_many_of_are_rounded_up() -> None:
    """Of 8 experts over 5 devices some have 2: what they wait for lies between 4 and 8 devices."""
    pairs = [busiest(1000.0, 8.0, 8, parts)[0] for parts in (4, 5, 8)]
    assert pairs[2] < pairs[1] and pairs[1] == pytest.approx(pairs[0], rel=0.1)
    assert busiest(1000.0, 8.0, 8, 5)[1] == 2


def test_the_host_starts_layers_with_experts_more_slowly_in_a_prefill_alone() -> None:
    """A short prompt waits for it; a long one, and a decode step, do not."""
    slow = replace(load_efficiencies("h100-sxm", stack="trtllm").host, layer=0.0)
    slow = replace(slow, layer_experts=1e-3)
    fast = replace(slow, layer_experts=0.0)

    def seconds(config: dict[str, Any], shape: StepShape, host: HostEfficiency) -> float:
        efficiencies = replace(load_efficiencies("h100-sxm", stack="trtllm"), host=host)
        model, hardware = parse_model(config), load_hardware("h100")
        return (
            RooflineCostModel(hardware, model, Parallel(tensor=8), Dtypes(), efficiencies)
            .step(shape)
            .seconds
        )

    short, long = (StepShape(0, 0, ((length, 0),), 1) for length in (64, 30000))
    config = configs.MIXTRAL
    layers = config["num_hidden_layers"]
    assert seconds(config, short, slow) == pytest.approx(layers * 1e-3)
    assert seconds(config, short, fast) < layers * 0.5e-3
    assert seconds(config, long, slow) == seconds(config, long, fast) > layers * 1e-3
    decoding = StepShape(8, 8000, (), 8)
    assert seconds(config, decoding, slow) == seconds(config, decoding, fast)
    assert seconds(configs.LLAMA_8B, short, slow) == seconds(configs.LLAMA_8B, short, fast)
