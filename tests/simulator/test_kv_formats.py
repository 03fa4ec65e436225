"""Protects: simulated and live caches hold the same tokens in the same bytes, in every format."""

from __future__ import annotations

import pytest

from twostroke.core.config import CacheConfig, EngineConfig, SchedulerConfig
from twostroke.core.kv_formats import KVCacheDtype
from twostroke.model_spec.number_formats import cache_format
from twostroke.runtime.loading import load_torch_executor
from twostroke.simulator.cost.attention_cost import DecodeAttention
from twostroke.simulator.deployment.deployment import deploy
from twostroke.simulator.deployment.options import DeploymentOptions

MEMORY = 2**24


@pytest.mark.parametrize("name", ["bfloat16", "int8", "int4", "fp8", "float32"])
def test_capacity_is_that_of_the_live_engine(name: KVCacheDtype) -> None:
    cache = CacheConfig(kv_cache_dtype=name, kv_cache_memory=MEMORY)
    options = DeploymentOptions(model="pilot", gpu="cpu", max_model_len=256)
    simulated = deploy(options, cache, SchedulerConfig()).info
    config = {"model": "pilot", "device": "cpu", "kv_cache_memory": MEMORY, "max_model_len": 256}
    live = load_torch_executor(EngineConfig.from_flat({**config, "kv_cache_dtype": name})).info
    assert simulated.num_blocks == live.num_blocks
    assert simulated.kv_bytes_per_token == live.kv_bytes_per_token
    assert simulated.kv_cache_dtype == cache_format(live.kv_cache_dtype).name


def test_fewer_bytes_take_less_time() -> None:
    """Decode attention of a long context: the cost model reads what is stored, with scales."""
    options = DeploymentOptions(model="llama-3.1-8b", gpu="h100")
    seconds = {}
    for name in ("bfloat16", "int8", "int4"):
        cost = deploy(options, CacheConfig(kv_cache_dtype=name), SchedulerConfig()).cost
        attention = cost.model.layers[0].attention
        assert attention is not None
        decode = DecodeAttention(attention, cost.efficiencies.decode, cost._share(attention))
        seconds[name] = decode.time(64, 64 * 16_000).seconds
    assert 0.45 < seconds["int8"] / seconds["bfloat16"] < 0.65
    assert 0.2 < seconds["int4"] / seconds["bfloat16"] < 0.45


@pytest.mark.parametrize(
    ("given", "meant"), [("bf16", "bfloat16"), ("fp8_e4m3", "fp8"), ("auto", "auto")]
)
def test_other_names(given: str, meant: str) -> None:
    assert CacheConfig(kv_cache_dtype=given).kv_format == meant  # type: ignore[arg-type]
