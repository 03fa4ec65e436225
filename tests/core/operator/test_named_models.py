"""Protects: several models on one command line each get what is meant for them, and no more."""

from __future__ import annotations

from pathlib import Path

import pytest

from twostroke.core.config import EngineConfig
from twostroke.core.errors import ConfigError
from twostroke.core.operator.named_models import configs_by_name, named_models, parse_shares


def test_names_stand_before_the_models() -> None:
    assert named_models([]) == {}
    assert named_models(["pilot"]) == {"": "pilot"}
    assert named_models(["chat=pilot"]) == {"chat": "pilot"}
    assert named_models(["a=x.gguf", "b=org/name:Q4_K_M"]) == {
        "a": "x.gguf",
        "b": "org/name:Q4_K_M",
    }


def test_a_folder_whose_name_looks_like_two_is_one(tmp_path: Path) -> None:
    folder = tmp_path / "a=b"
    folder.mkdir()
    assert named_models([str(folder)]) == {"": str(folder)}


@pytest.mark.parametrize("given", [["pilot", "b=pilot"], ["a=", "b=pilot"], ["a=x", "a=y"]])
def test_what_is_ambiguous_is_refused(given: list[str]) -> None:
    with pytest.raises(ConfigError):
        named_models(given)


def test_shares_add_up_to_one() -> None:
    assert parse_shares([], ["a", "b"]) == {"a": 0.5, "b": 0.5}
    assert parse_shares(["a=3"], ["a", "b"]) == {"a": 0.75, "b": 0.25}


@pytest.mark.parametrize("given", ["a", "a=0", "a=-1", "a=x", "c=1", "a=inf", "a=nan"])
def test_malformed_shares_are_refused(given: str) -> None:
    with pytest.raises(ConfigError, match="--kv-cache-share must be"):
        parse_shares([given], ["a", "b"])


def test_what_is_said_of_one_model_is_said_of_the_first() -> None:
    flat = {
        "model": "pilot",
        "kv_cache_memory": 300,
        "lora": ("x=y",),
        "speculation": "ngram",
        "record": "steps.jsonl",
        "kv_disk": "blocks",
        "max_num_seqs": 3,
    }
    configs = configs_by_name(
        EngineConfig.from_flat(flat), {"a": "pilot", "b/c": "other"}, {"a": 0.75, "b/c": 0.25}
    )
    first, second = configs["a"], configs["b/c"]
    assert (first.model.model, second.model.model) == ("pilot", "other")
    assert (first.cache.kv_cache_memory, second.cache.kv_cache_memory) == (225, 75)
    assert first.cache.memory_share == 0.75 and second.cache.memory_share == 0.25
    assert first.cache.gpu_memory_utilization == 0.9
    assert first.adapters.lora == ("x=y",) and second.adapters.lora == ()
    assert second.speculation.speculation is None and second.observability.record is None
    assert (first.tiers.kv_disk, second.tiers.kv_disk) == ("blocks", "blocks/b_c")
    assert second.scheduler.max_num_seqs == 3
