"""The roofline cost model: bounds of physics, direction of every influence, speed."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from tests.model_spec import configs
from twostroke.core.errors import ConfigError
from twostroke.model_spec.public_models import find_model
from twostroke.model_spec.reader import parse_model
from twostroke.simulator.cost.communication import all_reduce_time
from twostroke.simulator.cost.configuration import Drafting, Dtypes, Parallel
from twostroke.simulator.cost.cost_model import RooflineCostModel
from twostroke.simulator.cost.efficiencies import load_efficiencies, stack_names
from twostroke.simulator.cost.hardware_sheet import hardware_names, load_hardware
from twostroke.timing.step_shape import StepShape


def decode(requests: int, context: int) -> StepShape:
    """``context`` of each request."""
    return StepShape(requests, requests * context, (), requests)


def prefill(*chunks: tuple[int, int]) -> StepShape:
    return StepShape(0, 0, chunks, len(chunks))


def make(
    config: dict[str, Any], gpu: str = "h100", ranks: int = 1, **more: Any
) -> RooflineCostModel:
    dtypes = Dtypes(weights=more.pop("weights", "auto"), kv_cache=more.pop("kv_cache", "auto"))
    hardware = load_hardware(gpu)
    efficiencies = load_efficiencies(hardware.name)
    return RooflineCostModel(
        hardware, parse_model(config), Parallel(tensor=ranks), dtypes, efficiencies, **more
    )


@pytest.mark.parametrize("gpu", hardware_names())
def test_every_device_has_times_within_physics(gpu: str) -> None:
    """Not faster than memory and peak rate allow, and not slower by more than a factor."""
    cost, model, hardware = (
        make(configs.LLAMA_8B, gpu),
        parse_model(configs.LLAMA_8B),
        load_hardware(gpu),
    )
    reading = (
        model.weight_bytes() - 2 * model.vocab_size * model.hidden_size
    ) / hardware.memory_bandwidth
    step = cost.step(decode(1, 100))
    assert reading < step.seconds < 4 * reading
    computing = model.prefill_flops(4096) / hardware.dense_flops["bf16"]
    step = cost.step(prefill((4096, 0)))
    assert computing < step.seconds < 4 * computing
    assert step.binding == "compute"


def test_decode_waits_for_memory_and_small_models_for_the_host() -> None:
    assert make(configs.LLAMA_70B, ranks=4).step(decode(8, 1000)).binding == "memory"
    small = {
        **configs.LLAMA_8B,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 1,
    }
    assert (
        make({**small, "vocab_size": 512, "head_dim": 64}).step(decode(200, 10)).binding == "host"
    )
    assert (
        make(configs.LLAMA_8B, "l40s", ranks=8).step(prefill((4096, 0))).binding == "communication"
    )


def test_more_work_takes_longer() -> None:
    cost = make(configs.LLAMA_8B)

    def seconds(shape: StepShape) -> float:
        return cost.step(shape).seconds

    assert seconds(decode(8, 1000)) < seconds(decode(8, 4000)) < seconds(decode(64, 4000))
    assert (
        seconds(prefill((512, 0))) < seconds(prefill((512, 8000))) < seconds(prefill((2048, 8000)))
    )
    assert seconds(prefill((512, 0))) < seconds(prefill((512, 0), (512, 0)))
    assert seconds(decode(8, 1000)) < seconds(StepShape(8, 8000, ((512, 0),), 9))
    # Mixed in one step, weights are read once.
    apart = seconds(decode(64, 1000)) + seconds(prefill((256, 0)))
    assert seconds(StepShape(64, 64000, ((256, 0),), 65)) < apart


def test_cheaper_formats_take_less_time() -> None:
    plain = make(configs.LLAMA_8B)
    shape = decode(4, 1000)
    times = [
        make(configs.LLAMA_8B, weights=name).step(shape).seconds for name in ("bf16", "fp8", "int4")
    ]
    assert times == sorted(times, reverse=True) and times[2] < 0.6 * times[0]
    long = decode(64, 8000)
    assert (
        make(configs.LLAMA_8B, kv_cache="fp8").step(long).seconds < 0.75 * plain.step(long).seconds
    )
    # Four-bit weights are computed in bfloat16: they read faster and compute no faster.
    chunk = prefill((8192, 0))
    assert make(configs.LLAMA_8B, weights="int4").step(chunk).seconds == pytest.approx(
        plain.step(chunk).seconds, rel=0.02
    )


def test_tensor_parallelism_helps_less_than_its_number() -> None:
    shapes = (decode(16, 2000), prefill((4096, 0)))
    for shape in shapes:
        one, four = (make(configs.LLAMA_70B, "h200", ranks=n).step(shape).seconds for n in (1, 4))
        assert one / 4 < four < one / 2
    # Over a network instead of links, prefill communicates longer.
    sheet = load_hardware("h200")
    args = (parse_model(configs.LLAMA_70B), Parallel(tensor=8), Dtypes(), load_efficiencies("h200"))
    inside = RooflineCostModel(sheet, *args).step(shapes[1]).seconds
    across = RooflineCostModel(replace(sheet, link_domain=4), *args).step(shapes[1]).seconds
    assert across > 2 * inside


def test_few_tokens_reach_few_experts() -> None:
    """One token reads two of Mixtral's eight experts (13 of 47 billion weights), 64 read all."""
    cost, model = make(configs.MIXTRAL, "h200"), parse_model(configs.MIXTRAL)
    bandwidth = load_hardware("h200").memory_bandwidth
    assert cost.step(decode(1, 100)).seconds < 2.0 * 2 * model.active_parameters / bandwidth
    assert cost.step(decode(64, 100)).seconds > 0.9 * model.weight_bytes() / bandwidth


def test_windows_and_states_bound_the_cost_of_context() -> None:
    everything = {**configs.LLAMA_8B, "model_type": "mistral"}
    windowed = {**everything, "sliding_window": 4096}
    assert make(windowed).step(decode(32, 4000)) == make(everything).step(decode(32, 4000))
    assert make(windowed).step(decode(32, 32000)) == make(windowed).step(decode(32, 4096))
    hybrid = make(configs.QWEN3_NEXT, "h200")
    growth = hybrid.step(decode(32, 32000)).seconds / hybrid.step(decode(32, 1000)).seconds
    dense = make(configs.QWEN3_32B, "h200")
    assert (
        growth < 0.8 * dense.step(decode(32, 32000)).seconds / dense.step(decode(32, 1000)).seconds
    )


def test_every_request_reads_and_writes_its_own_state() -> None:
    """Of a hybrid model, once a step, however large the batch and however long a prompt's chunk."""
    model = parse_model(configs.QWEN3_NEXT)
    small = tuple(
        replace(layer, recurrent=replace(layer.recurrent, state_elements=0, conv=()))
        if layer.recurrent
        else layer
        for layer in model.layers
    )
    args = (Parallel(), Dtypes(), load_efficiencies("h200"))
    full, stateless = (
        RooflineCostModel(load_hardware("h200"), sheet, *args)
        for sheet in (model, replace(model, layers=small))
    )
    state = 2 * model.state_bytes() / load_hardware("h200").memory_bandwidth
    for shape, states in (
        (decode(16, 100), 16),
        (decode(256, 100), 256),
        (prefill((4096, 0), (4096, 0)), 2),
    ):
        more = full.step(shape).seconds - stateless.step(shape).seconds
        assert states * state < more < 2 * states * state


def test_latent_attention_is_cheap_to_read() -> None:
    """DeepSeek-V3 caches 70 KB a token; with 128 heads of its own it would be 57 times as much."""
    cost = make(configs.DEEPSEEK_V3, "b200", ranks=8)
    more = cost.step(decode(64, 20000)).seconds - cost.step(decode(64, 10000)).seconds
    floor = 64 * 10000 * 70272 / load_hardware("b200").memory_bandwidth
    assert floor < more < 5 * floor


def test_prefill_of_latent_attention_brings_cached_tokens_back() -> None:
    """Later chunks expand all cached tokens to keys and values: 2 x 512 x 128 x 256 FLOPs each."""
    ranks, sheet = 8, load_hardware("h200")
    cost = make(configs.DEEPSEEK_V3, "h200", ranks=ranks)
    shorter, longer = (cost.step(prefill((2, before))).seconds for before in (32_768, 65_536))
    flops = 61 * 32_768 * 2 * 512 * 128 * (128 + 128) / ranks
    # Bytes of a read, beside their making.
    keys_and_values = 61 * 32_768 * 2 * 128 * (192 + 128) / ranks
    assert (
        longer - shorter
        > flops / sheet.dense_flops["fp8"] + keys_and_values / sheet.memory_bandwidth
    )
    # One new token works on the compressed form instead.
    absorbed = [cost.step(decode(1, before)).seconds for before in (32_768, 65_536)]
    assert absorbed[1] - absorbed[0] < 0.1 * (longer - shorter)
    # Where nothing is cached, nothing is brought back; two halves of a prompt cost more than the
    # whole.
    whole = cost.step(prefill((8192, 0))).seconds
    halves = cost.step(prefill((4096, 0))).seconds + cost.step(prefill((4096, 4096))).seconds
    assert halves > whole + 61 * 4096 * 2 * 512 * 128 * 256 / ranks / sheet.dense_flops["fp8"]


def test_speculation_costs_little_while_memory_decides() -> None:
    draft = {
        **configs.LLAMA_8B,
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 4,
    }
    drafted = parse_model({**draft, "head_dim": 32})
    cost = make(configs.LLAMA_70B, ranks=4, drafting=Drafting(model=drafted))
    plain = make(configs.LLAMA_70B, ranks=4).step(decode(4, 1000))
    assert cost.step(decode(4, 1000)) == plain, "without drafts nothing is different"
    checking = decode(4, 1000)._replace(drafts=12)
    checked = cost.step(checking).seconds
    assert plain.seconds < checked < 1.2 * plain.seconds
    step = cost.step(checking._replace(draft_rounds=3))
    assert step.seconds == pytest.approx(checked + step.drafting)
    assert 0 < step.drafting < plain.seconds
    # A chunk of a prompt is no different for it.
    assert cost.step(prefill((512, 0))) == make(configs.LLAMA_70B, ranks=4).step(prefill((512, 0)))


def test_a_draft_model_reads_prompts_too() -> None:
    small = find_model("llama-3.2-1b")
    cost = make(configs.LLAMA_70B, ranks=4, drafting=Drafting(model=small))
    alone = RooflineCostModel(cost.hardware, small, Parallel(tensor=4), Dtypes(), cost.efficiencies)
    prompt = StepShape(0, 0, ((512, 0),), 1)
    step = cost.step(prompt._replace(draft_prefill=((2048, 0),)))
    assert step.drafting == pytest.approx(alone.step(StepShape(0, 0, ((2048, 0),), 1)).seconds)
    assert step.seconds == pytest.approx(cost.step(prompt).seconds + step.drafting)


def test_a_head_with_a_cache_reads_every_prompt_and_first_layers_read_none_again() -> None:
    prompt = StepShape(0, 0, ((2048, 0),), 1)
    plain = make(configs.LLAMA_8B).step(prompt).seconds
    head = make(configs.LLAMA_8B, drafting=Drafting(share=0.1, reads_prompts=True)).step(prompt)
    assert head.drafting == pytest.approx(0.1 * plain)
    assert make(configs.LLAMA_8B, drafting=Drafting(share=0.1)).step(prompt).drafting == 0


def test_nodes_start_later_than_devices_of_one() -> None:
    """NCCL's own model says 26.5 us for 8 KiB over two nodes of eight H100."""
    model, sheet = parse_model(configs.LLAMA_70B), load_hardware("h100")
    efficiencies = load_efficiencies(sheet.name, link=sheet.link_kind)
    size = 16 * 1024
    across, within = (
        all_reduce_time(
            size, ranks, efficiency=efficiencies.all_reduce, link=sheet.bandwidth_between(ranks)
        )
        for ranks in (16, 8)
    )
    across += efficiencies.all_reduce.network
    assert within < 10e-6 and 25e-6 < across < 32e-6
    at_once = replace(efficiencies, all_reduce=replace(efficiencies.all_reduce, network=0.0))
    later, sooner = (
        RooflineCostModel(sheet, model, Parallel(tensor=16), Dtypes(), each).step(decode(1, 100))
        for each in (efficiencies, at_once)
    )
    # Two all-reduces in each of 80 layers, one after the embedding, the logits.
    starts = 162 * efficiencies.all_reduce.network * efficiencies.step.decode
    assert later.seconds - sooner.seconds == pytest.approx(starts, rel=0.02)


def test_kernels_of_a_layer_lie_apart_but_those_of_experts_were_measured_so() -> None:
    def gaps(name: str) -> float:
        model, sheet = find_model(name), load_hardware("h100")
        there = load_efficiencies(sheet.name)
        apart = replace(there, step=replace(there.step, gap=there.step.gap + 1e-3))
        later, sooner = (
            RooflineCostModel(sheet, model, Parallel(), Dtypes(), each).step(decode(4, 100)).seconds
            for each in (apart, there)
        )
        return later - sooner

    assert gaps("llama-3.1-8b") == pytest.approx(32e-3)
    assert gaps("qwen3-30b-a3b") == pytest.approx(0.0)
    # Mamba alone: a layer is one branch, half as many kernels.
    assert gaps("mamba-codestral-7b") == pytest.approx(
        0.5 * find_model("mamba-codestral-7b").num_layers * 1e-3
    )


def test_drafts_of_the_first_layers_take_their_share_of_a_step() -> None:
    cost = make(configs.LLAMA_8B, drafting=Drafting(share=0.25))
    plain = cost.step(decode(4, 1000)).seconds
    drafting = cost.step(decode(4, 1000)._replace(draft_rounds=2)).drafting
    assert drafting == pytest.approx(0.5 * plain, rel=0.05)


def test_only_sampled_rows_pass_the_head() -> None:
    cost = make(configs.LLAMA_8B)
    assert cost.step(StepShape(0, 0, ((512, 0),), 0)).seconds < cost.step(prefill((512, 0))).seconds


def test_an_interval_surrounds_every_estimate() -> None:
    for shape in (decode(8, 1000), prefill((2048, 0)), StepShape(8, 8000, ((512, 512),), 8)):
        step = make(configs.LLAMA_8B).step(shape)
        assert 0.3 * step.seconds < step.low < step.seconds < step.high < 3 * step.seconds


def test_same_shape_same_time_whatever_came_before() -> None:
    fresh, used = make(configs.MIXTRAL), make(configs.MIXTRAL)
    for requests in range(1, 40):
        used.step(decode(requests, 50 * requests))
        used.step(prefill((requests, 0)))
    for shape in (decode(7, 333), prefill((100, 7)), StepShape(3, 99, ((5, 0), (9, 2)), 4)):
        assert used.step(shape) == fresh.step(shape)


def test_a_cpu_is_slower_just_after_a_prompt() -> None:
    """By seconds that fade from step to step; a GPU's steps do not depend on what went before."""
    cost = make(configs.LLAMA_8B, "cpu")
    seconds = [
        cost.step(decode(4, 300)._replace(since_prefill=since)).seconds for since in (1, 2, 3, 0)
    ]
    host = cost.efficiencies.host
    extra = [step - seconds[-1] for step in seconds[:3]]
    assert extra == pytest.approx([host.settle * host.fade**power for power in range(3)])
    assert extra[0] > extra[1] > extra[2] > 0
    assert make(configs.LLAMA_8B).efficiencies.host.settle == 0


def test_an_idle_cpu_is_slower_at_first() -> None:
    """By the same seconds whatever the prompt's length: weights and code come from memory once."""
    cost = make(configs.LLAMA_8B, "cpu")
    for shape in (prefill((20, 0)), prefill((700, 512)), decode(1, 40)):
        extra = cost.step(shape._replace(after_idle=True)).seconds - cost.step(shape).seconds
        assert extra == pytest.approx(cost.efficiencies.host.wake, rel=1e-6) and extra > 0
    assert make(configs.LLAMA_8B).efficiencies.host.wake == 0


def test_an_empty_step_costs_the_host_only() -> None:
    cost = make(configs.LLAMA_8B)
    assert cost.step(StepShape(0, 0, (), 0)).seconds == cost.efficiencies.host.step


@pytest.mark.parametrize(
    "name", ["llama-3.1-70b", "qwen3-235b-a22b", "deepseek-v3", "gpt-oss-120b"]
)
def test_a_step_of_a_new_size_is_quick_to_estimate(name: str) -> None:
    """It takes 20 to 50 us on the development machine, also where layers alternate."""
    hardware, efficiencies = load_hardware("h200"), load_efficiencies("h200")
    args = hardware, find_model(name), Parallel(tensor=8), Dtypes(), efficiencies
    best = float("inf")
    for _ in range(3):
        cost = RooflineCostModel(*args)
        start = time.process_time()
        for requests in range(10, 110):
            cost.step(decode(requests, 3000))
        best = min(best, (time.process_time() - start) / 100)
    assert best < 200e-6


def test_a_step_that_only_decodes_is_quick_to_estimate() -> None:
    """A decode step takes 3 us of CPU time on the development machine; others may be slower."""
    cost = make(configs.LLAMA_8B)
    shapes = [decode(32, 1000 + i) for i in range(500)]
    cost.step(shapes[0])
    best = float("inf")
    for _ in range(5):
        start = time.process_time()
        for shape in shapes:
            cost.step(shape)
        best = min(best, (time.process_time() - start) / len(shapes))
    assert best < 20e-6


@pytest.mark.parametrize("stack", stack_names())
def test_serving_stacks_have_host_times_of_their_own(stack: str) -> None:
    hardware, model = load_hardware("h100"), parse_model(configs.LLAMA_8B)
    calibrated = RooflineCostModel(
        hardware, model, Parallel(), Dtypes(), load_efficiencies("h100-sxm", stack=stack)
    )
    assert 0.003 < calibrated.step(decode(8, 1000)).seconds < 0.02


def test_unusable_combinations_say_so() -> None:
    with pytest.raises(ConfigError, match="does not divide"):
        make(configs.LLAMA_8B, ranks=5)
    with pytest.raises(ConfigError, match="unknown weight format"):
        make(configs.LLAMA_8B, weights="int3")
    with pytest.raises(ConfigError, match="unknown KV cache format"):
        make(configs.LLAMA_8B, kv_cache="int3")
