"""Configuration is checked where it is made, and unknown names are not ignored."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import pytest

from twostroke.core.config import EngineConfig, PolicyName, SchedulerConfig, SchedulerOptions
from twostroke.core.errors import ConfigError


@pytest.mark.parametrize(
    "name, value",
    [
        ("dtype", "bf16"),
        ("max_num_seqs", 0),
        ("max_num_seqs", "8"),
        ("max_num_batched_tokens", 0),
        ("max_prefill_chunk", 0),
        ("max_model_len", 0),
        ("block_size", None),
        ("block_size", 2000),
        ("kv_cache_memory", -1),
        ("gpu_memory_utilization", 1.5),
        ("cpu_memory_utilization", "much"),
        ("policy", "lifo"),
        ("batching", "sometimes"),
        ("step_events", 0),
        ("model", ""),
        ("model", 5),
        ("device", None),
        ("seed", "x"),
        ("record", 5),
        ("enable_prefix_caching", "false"),
        ("kv_cache_memory", "plenty"),
        ("max_model_len", 1),
    ],
)
def test_bad_values_are_refused_with_the_flag(name: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        EngineConfig.from_flat({name: value})
    assert "--" + name.replace("_", "-") in caught.value.message
    assert caught.value.hint


def test_unknown_options_are_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError) as caught:
        EngineConfig.from_flat({"max_num_sequences": 4})
    assert caught.value.hint == "did you mean max_num_seqs?"


def test_options_reach_their_section() -> None:
    config = EngineConfig.from_flat(
        {"model": "x", "block_size": 32, "max_num_seqs": 3, "record": "a.jsonl"}
    )
    assert (config.model.model, config.cache.block_size, config.scheduler.max_num_seqs) == (
        "x",
        32,
        3,
    )
    assert config.observability.record == "a.jsonl"


def test_sizes_may_be_written_with_units() -> None:
    assert EngineConfig.from_flat({"kv_cache_memory": "2GiB"}).cache.kv_cache_memory == 2**31


def test_defaults_depend_on_the_device_and_what_is_given_does_not() -> None:
    """A simulated H100 kept requests waiting for a CPU's 64 places with 8 % of its cache in use."""
    config = SchedulerOptions()
    on_cpu, on_gpu = (config.for_device(gpu=gpu) for gpu in (False, True))
    assert (on_cpu.max_num_seqs, on_cpu.max_num_batched_tokens) == (64, 2048)
    assert (on_gpu.max_num_seqs, on_gpu.max_num_batched_tokens) == (256, 8192)
    given = replace(SchedulerOptions(max_num_seqs=64), policy="fair").for_device(gpu=True)
    assert (given.max_num_seqs, given.max_num_batched_tokens) == (64, 8192)
    assert on_gpu == on_gpu.for_device(gpu=False)
    assert on_cpu == SchedulerConfig()
    copied = SchedulerOptions(**asdict(config))
    assert copied.for_device(gpu=True) == on_gpu


def test_the_default_policy_depends_on_keys_and_a_given_one_does_not() -> None:
    """With keys there are several users, and none may make the others wait."""
    policies: tuple[PolicyName, ...] = ("fcfs", "priority", "fair")
    default = SchedulerOptions()
    copied = replace(SchedulerOptions(**asdict(default)), max_num_seqs=8)
    assert default.for_device(gpu=False).policy == "fcfs"
    assert default.for_keys().policy == copied.for_keys().policy == "fair"
    assert copied.for_keys().for_device(gpu=True).policy == "fair"
    for policy in policies:
        assert SchedulerOptions(policy=policy).for_keys().policy == policy
