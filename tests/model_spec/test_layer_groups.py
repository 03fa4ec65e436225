"""Protects: layers of one kind share blocks, and little of a block is wasted."""

from __future__ import annotations

from typing import Any

import pytest

from tests.checkpoints import tiny_config
from twostroke.core.config import CacheConfig, EngineConfig, SchedulerConfig
from twostroke.engine.make_kv import capacity_text
from twostroke.model_spec.layer_groups import group_layers, groups_beside
from twostroke.model_spec.public_models import find_model
from twostroke.model_spec.reader import parse_model
from twostroke.model_spec.spec import ModelSpec
from twostroke.simulator.deployment.deployment import deploy
from twostroke.simulator.deployment.options import DeploymentOptions


def model(kinds: str, **changes: Any) -> ModelSpec:
    """``w`` is a layer with a window, ``f`` one that sees everything."""
    names = {"w": "sliding_attention", "f": "full_attention"}
    raw = tiny_config(
        "qwen3",
        num_hidden_layers=len(kinds),
        layer_types=[names[kind] for kind in kinds],
        use_sliding_window=True,
        sliding_window=8,
        **changes,
    )
    return parse_model(raw)


@pytest.mark.parametrize(
    ("layers", "size", "groups"),
    [
        (26, 4, 7),  # Gemma 3 1B: 4 see everything, 22 do not
        (34, 5, 7),  # 4B: 5 and 29
        (48, 8, 6),  # 12B: 8 and 40
        (62, 13, 5),  # 27B: 10 and 52
    ],
)
def test_sizes_of_gemma_3(layers: int, size: int, groups: int) -> None:
    made = group_layers(model(("wwwwwf" * 11)[:layers]))
    assert made.size == size and len(made.layers) == groups
    assert sorted(layer for group in made.layers for layer in group) == list(range(layers))
    assert made.windows.index(8) == made.windows.count(None)  # those that see all come first


def test_models_of_one_kind_are_one_group() -> None:
    for kinds, window in (("ffff", None), ("wwww", 8)):
        made = group_layers(model(kinds))
        assert made.windows == (window,) and made.layers == ((0, 1, 2, 3),)
        spec = model(kinds)
        assert made.bytes_per_slot(spec, "int8") == spec.kv_bytes_per_token("int8")


def test_what_drafts_decides_what_may_be_given_back() -> None:
    one, several = model("ww"), model("wf")
    assert groups_beside(one, "ngram").windows == groups_beside(one, "early-exit").windows == (8,)
    assert groups_beside(several, None).windows == (None, 8)
    for spec, method in ((one, "draft"), (several, "draft"), (several, "early-exit")):
        assert groups_beside(spec, method).windows == (None,)


def test_gpt_oss_holds_nearly_twice_the_long_requests() -> None:
    """Simulated: 12 of its 24 layers see 128 tokens."""
    config = SchedulerConfig(max_num_batched_tokens=2048)
    cache = CacheConfig(kv_cache_memory=2**34)
    made = deploy(DeploymentOptions(model="gpt-oss-20b", max_model_len=65536), cache, config)
    info, spec = made.info, find_model("gpt-oss-20b")
    assert info.kv_groups.windows == (None, 128)
    assert info.block_bytes == 16 * spec.kv_bytes_per_token() / 2
    without = 2**34 // (65536 * spec.kv_bytes_per_token())
    assert info.full_requests > 1.8 * without
    assert capacity_text(info).endswith("tokens of long requests (windows of 128)")


@pytest.mark.parametrize("kinds", ["ww", "wf", "wwf"])
def test_simulated_capacity_is_that_of_the_live_engine(kinds: str, tmp_path: Any) -> None:
    from tests.checkpoints import write_checkpoint
    from twostroke.runtime.loading import load_torch_executor

    spec = model(kinds)
    raw = tiny_config(
        "qwen3",
        num_hidden_layers=len(kinds),
        layer_types=["sliding_attention" if k == "w" else "full_attention" for k in kinds],
        use_sliding_window=True,
        sliding_window=8,
        torch_dtype="bfloat16",
    )
    assert parse_model(raw).sliding_windows == spec.sliding_windows
    folder = write_checkpoint(tmp_path / "model", raw)
    options = {"kv_cache_memory": 2**20, "max_model_len": 128, "device": "cpu"}
    config = EngineConfig.from_flat({"model": str(folder), "dtype": "bfloat16", **options})
    live = load_torch_executor(config).info
    simulated = deploy(
        DeploymentOptions(model=str(folder), gpu="cpu", max_model_len=128),
        CacheConfig(kv_cache_memory=2**20),
        config.scheduler.for_device(gpu=False),
    ).info
    assert simulated.kv_groups == live.kv_groups
    assert simulated.block_bytes == live.block_bytes
    assert simulated.num_blocks == live.num_blocks
