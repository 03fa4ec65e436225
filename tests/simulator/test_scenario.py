"""What-ifs: each flag moves the results in the direction that it should."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.simulator.scenarios import runs, scenario
from twostroke.core.config import CacheConfig, SchedulerOptions
from twostroke.core.errors import ConfigError, ModelLoadError
from twostroke.model_spec.public_models import find_model
from twostroke.routing.autoscaler import AutoscalerOptions
from twostroke.simulator.deployment.options import DeploymentOptions
from twostroke.simulator.reports.fields import run_fields
from twostroke.simulator.results.run import Run
from twostroke.simulator.scenario import Scenario
from twostroke.simulator.simulate import simulate
from twostroke.simulator.sweep import sweep


def p99(run: Run, name: str) -> float:
    return run.summary.latencies[name].percentiles[99]


def test_more_load_waits_longer_and_a_slower_device_is_slower() -> None:
    slow, fast = runs("rate=2,200", num_requests=60)
    assert p99(slow, "ttft") < p99(fast, "ttft")
    h100, l4 = runs("gpu=h100,l4")
    assert p99(h100, "tpot") < p99(l4, "tpot") / 3


def mean(run: Run, name: str) -> float:
    return run.summary.latencies[name].mean


@pytest.mark.parametrize(
    ("axis", "workload", "value"),
    [
        ("tp=4,1", {}, lambda run: mean(run, "tpot")),
        ("weight_dtype=fp8,bf16", {}, lambda run: mean(run, "tpot")),
        ("speculative_tokens=3,0", {"rate": 2.0}, lambda run: mean(run, "tpot")),
        ("acceptance=0.9,0.1", {"rate": 2.0}, lambda run: mean(run, "tpot")),
        (
            "batching=static,continuous",
            {"num_requests": 150, "rate": None},
            lambda run: run.summary.output_throughput,
        ),
        (
            "replicas=1,3",
            {"num_requests": 150, "rate": None},
            lambda run: run.summary.output_throughput,
        ),
        (
            "enable_prefix_caching=off,on",
            {"workload": "sessions"},
            lambda run: run.summary.prefix_hit_rate,
        ),
        (
            "kv_cache_memory=1GiB,4GiB",
            {"workload": "sessions"},
            lambda run: run.summary.prefix_hit_rate,
        ),
        ("kv_cache_dtype=bf16,fp8", {}, lambda run: run.deployment.info.num_blocks),
        (
            "max_prefill_chunk=256,none",
            {"workload": "random", "input_len": 4000, "output_len": 50},
            lambda run: p99(run, "itl"),
        ),
        (
            "max_num_batched_tokens=512,8192",
            {"workload": "random", "input_len": 4000, "output_len": 50},
            lambda run: p99(run, "itl"),
        ),
        (
            "router=round-robin,prefix-affinity",
            {"workload": "sessions"},
            lambda run: run.summary.prefix_hit_rate,
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_ifs_by_flag_do_what_they_say(
    axis: str, workload: dict[str, Any], value: Callable[[Run], float]
) -> None:
    """The first value of each flag makes the measure smaller than the second."""
    asked = scenario(**workload)
    if axis.startswith("acceptance"):
        asked = replace(asked, deployment=replace(asked.deployment, speculative_tokens=3))
    if axis.startswith("batching"):
        asked = replace(asked, scheduler=SchedulerOptions(max_num_seqs=64))
    if axis.startswith("router"):
        asked = replace(asked, deployment=replace(asked.deployment, replicas=3))
    first, second = (simulate(varied) for varied in sweep(asked, (axis,)))
    assert value(first) < value(second)


def test_priority_lets_the_urgent_go_first() -> None:
    """A workload's priorities reach the engine's policy, and the report separates them."""
    crowd: dict[str, Any] = {"num_requests": 150, "rate": None, "priorities": 2}
    fcfs, priority = (
        simulate(varied) for varied in sweep(scenario(**crowd), ("policy=fcfs,priority",))
    )
    assert priority.summary.ttft_by_priority[0].mean < 0.8 * fcfs.summary.ttft_by_priority[0].mean
    assert priority.summary.ttft_by_priority[1].mean > fcfs.summary.ttft_by_priority[1].mean
    assert set(run_fields(priority)["by_priority"]) == {"0", "1"}
    without = [
        simulate(varied) for varied in sweep(scenario(num_requests=150), ("policy=fcfs,priority",))
    ]
    assert without[0].summary == without[1].summary  # then both are the order of arrival


def test_fair_scheduling_is_a_what_if_between_tenants() -> None:
    """One key floods; under fcfs the others wait behind it, under fair they do not."""
    crowd: dict[str, Any] = {"num_requests": 150, "rate": None, "tenants": 4}
    fcfs, fair = (simulate(varied) for varied in sweep(scenario(**crowd), ("policy=fcfs,fair",)))
    counts = Counter(request.tenant for request in fair.result.requests)
    assert counts[0] > counts[1] > counts[3] > 0
    assert fair.summary.ttft_by_tenant[3].mean < 0.7 * fcfs.summary.ttft_by_tenant[3].mean
    assert set(run_fields(fair)["by_tenant"]) == {"0", "1", "2", "3"}
    assert simulate(scenario(tenants=1)).summary.ttft_by_tenant == {}


@pytest.mark.parametrize(
    ("scheduler", "cache", "workload", "reason"),
    [
        ({"max_num_seqs": 4}, {}, {"rate": None, "num_requests": 60}, "max_num_seqs"),
        ({}, {"kv_cache_memory": 2**28}, {"rate": None, "num_requests": 60}, "no_free_block"),
        (
            {"max_num_batched_tokens": 64},
            {},
            {"workload": "random", "rate": None, "output_len": 2},
            "token_budget",
        ),
        (
            {"batching": "static", "max_num_seqs": 4},
            {},
            {"rate": None, "num_requests": 60},
            "batch_running",
        ),
        ({}, {}, {"rate": 2.0}, "step"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.parametrize("jump", [True, False])
def test_the_report_names_what_requests_wait_for(
    scheduler: dict[str, Any],
    cache: dict[str, Any],
    workload: dict[str, Any],
    reason: str,
    jump: bool,
) -> None:
    """And so which flag, or how much memory, would shorten the queue."""
    asked = replace(
        scenario(**workload), scheduler=SchedulerOptions(**scheduler), cache=CacheConfig(**cache)
    )
    waits = simulate(asked, jump=jump).summary.waiting_for
    assert max(waits, key=waits.__getitem__) == reason and waits[reason] > 0.6
    assert sum(waits.values()) == pytest.approx(1)


def test_models_are_found_by_name_hub_id_and_folder(tmp_path: Path) -> None:
    by_name = find_model("llama-3.1-8b")
    assert by_name == find_model("meta-llama/Llama-3.1-8B-Instruct")
    assert by_name.num_parameters == 8_030_261_248
    assert find_model("pilot").num_layers > 0
    with pytest.raises(ModelLoadError, match="unknown model") as caught:
        find_model("llama-3.1-9b")
    assert "did you mean llama-3.1-8b" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("llama-3.1-405b", 405_853_388_800),
        ("mixtral-8x7b", 46_702_792_704),
        ("qwen2.5-7b", 7_615_616_512),
        ("qwen3-30b-a3b", 30_532_122_624),
        ("gpt-oss-120b", 116_829_156_672),
    ],
)
def test_public_models_have_their_published_size(name: str, parameters: int) -> None:
    assert find_model(name).num_parameters == parameters


def test_interval_encloses_the_point() -> None:
    run = simulate(scenario(), interval=True)
    low, high = (run.interval[end].latencies["tpot"].mean for end in ("low", "high"))
    assert low < run.summary.latencies["tpot"].mean < high


def test_defaults_are_those_of_the_simulated_device() -> None:
    settings = {}
    for gpu in ("h100", "cpu"):
        asked = scenario(num_requests=3)
        run = simulate(replace(asked, deployment=replace(asked.deployment, gpu=gpu, model="pilot")))
        setting = run.scenario.setting()
        settings[gpu] = (setting["max_num_seqs"], setting["max_num_batched_tokens"])
    assert settings == {"h100": (256, 8192), "cpu": (64, 2048)}


def test_a_pool_begins_within_its_bounds() -> None:
    scaling = AutoscalerOptions(autoscale="kv", min_replicas=2, max_replicas=3)
    Scenario(deployment=DeploymentOptions(replicas=3), scaling=scaling)
    for replicas in (1, 4):
        with pytest.raises(ConfigError, match="--min-replicas to --max-replicas: 2 to 3, got"):
            Scenario(deployment=DeploymentOptions(replicas=replicas), scaling=scaling)
