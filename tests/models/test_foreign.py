"""Decoders by transformers' code over our cache: the same logits, on each way to them.

And the same tokens alone and in any mix; what cannot work is refused in one line.
"""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.checkpoints import tiny_config, write_checkpoint
from tests.models.foreign_models import FOREIGN, logits_by_transformers, write_foreign
from tests.models.parity import TOKENS, TOLERANCE, distances_from
from tests.models.tiny_families import FAMILIES
from tests.runtime.mixed_models import check_random_requests
from twostroke.core.config import EngineConfig
from twostroke.core.errors import ConfigError, ModelLoadError
from twostroke.engine.llm_engine import LLMEngine
from twostroke.models.foreign import choose
from twostroke.models.foreign.decoder import ForeignDecoder
from twostroke.models.registry import MODEL_TYPES
from twostroke.runtime.loading import load_torch_executor

# Own families that by transformers' code need all that our attention does: soft caps, windows in
# some layers, sinks, values of another width than keys.
BOTH = ("gemma2", "gpt-oss", "deepseek-v3", "cohere2", "qwen3-moe", "llama-tied-llama3-rope")


def flat(folder: Path, **options: Any) -> EngineConfig:
    values = {"max_model_len": 128, "max_num_seqs": 4, "kv_cache_memory": 2**20, "block_size": 4}
    return EngineConfig.from_flat({"model": str(folder), "device": "cpu", **values, **options})


@pytest.mark.parametrize("model_type", FOREIGN)
def test_logits_equal_those_of_transformers(model_type: str, tmp_path: Path) -> None:
    assert model_type not in MODEL_TYPES
    write_foreign(tmp_path, model_type)
    distances = distances_from(tmp_path, logits_by_transformers(tmp_path, TOKENS))
    assert distances.largest() < TOLERANCE


@pytest.mark.parametrize("family", BOTH)
def test_own_families_run_by_transformers_as_well(family: str, tmp_path: Path) -> None:
    write_checkpoint(tmp_path, FAMILIES[family])
    expected = logits_by_transformers(tmp_path, TOKENS)
    distances = distances_from(tmp_path, expected, model_impl="transformers")
    assert distances.largest() < TOLERANCE


@pytest.mark.parametrize("model_type", ["stablelm", "exaone4", "gpt2", "olmoe"])
def test_answers_depend_on_no_company(model_type: str, tmp_path: Path) -> None:
    write_foreign(tmp_path, model_type)
    config = flat(tmp_path, max_num_batched_tokens=16, kv_cache_memory=2**18)
    executor = load_torch_executor(config)
    assert isinstance(executor.model, ForeignDecoder)
    engine = LLMEngine(executor, config=config)
    check_random_requests(engine, executor.model, Random(model_type))


@pytest.mark.parametrize(
    ("model_type", "changes", "named"),
    [
        ("bloom", {}, "does not go through transformers' attention interface"),
        ("falcon", {}, "does not go through transformers' attention interface"),
        ("mamba", {}, "does not go through transformers' attention interface"),
        ("minimax", {"head_dim": 8}, "mixes tokens outside its attention"),
        ("doge", {}, "a mask of its own"),
        ("llama4_text", {"head_dim": 8}, "attention_chunk_size"),
    ],
)
def test_what_cannot_work_is_refused(
    model_type: str, changes: dict[str, Any], named: str, tmp_path: Path
) -> None:
    write_foreign(tmp_path, model_type, **changes)
    with pytest.raises(ModelLoadError, match=named) as refused:
        load_torch_executor(flat(tmp_path, model_impl="transformers"))
    assert refused.value.hint and "\n" not in refused.value.message


@pytest.mark.parametrize(
    ("raw", "named"),
    [
        ({"model_type": "gpt7"}, "unknown architecture: model_type is 'gpt7'"),
        ({"model_type": "gpt7", "auto_map": {"AutoConfig": "own.Own"}}, "unknown architecture"),
        ({"model_type": "t5"}, "is_encoder_decoder"),
        ({"model_type": "vit"}, "no language model"),
        ({"model_type": "stablelm", "hidden_size": "many"}, "hidden_size"),
        ({"model_type": "stablelm", "quantization_config": {"a": 1}}, "quantization_config"),
    ],
)
def test_a_config_that_is_no_decoder_is_refused(
    raw: dict[str, Any], named: str, tmp_path: Path
) -> None:
    write_foreign(tmp_path, "stablelm")
    (tmp_path / "own.py").write_text("raise SystemExit('code of a checkpoint was run')")
    (tmp_path / "config.json").write_text(json.dumps(raw))
    with pytest.raises(ModelLoadError, match=named) as refused:
        load_torch_executor(flat(tmp_path))
    assert refused.value.hint and "\n" not in refused.value.message


def test_tensors_that_are_missing_or_misshaped_are_named(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    write_foreign(tmp_path, "stablelm")
    tensors = load_file(tmp_path / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight"
    for changed in ({}, {name: tensors[name][:-1].contiguous()}):
        kept = {other: tensor for other, tensor in tensors.items() if other != name}
        save_file({**kept, **changed}, tmp_path / "model.safetensors", metadata={"format": "pt"})
        with pytest.raises(ModelLoadError, match=name):
            load_torch_executor(flat(tmp_path))


def test_pickles_are_refused(tmp_path: Path) -> None:
    write_foreign(tmp_path, "stablelm")
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelLoadError, match="pickle"):
        load_torch_executor(flat(tmp_path))


@pytest.mark.parametrize(
    "options", [{"quantization": "int8", "dtype": "bfloat16"}, {"speculation": "early-exit"}]
)
def test_options_of_own_families_are_refused(options: dict[str, Any], tmp_path: Path) -> None:
    write_foreign(tmp_path, "stablelm")
    with pytest.raises(ConfigError) as refused:
        load_torch_executor(flat(tmp_path, **options))
    assert refused.value.hint


def test_own_families_come_first_and_can_be_asked_for(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "llama", tiny_config("llama"))
    for impl in ("auto", "twostroke"):
        model = load_torch_executor(flat(folder, model_impl=impl)).model
        assert not isinstance(model, ForeignDecoder)
    write_foreign(tmp_path / "stablelm", "stablelm")
    with pytest.raises(ModelLoadError, match="unknown architecture"):
        load_torch_executor(flat(tmp_path / "stablelm", model_impl="twostroke"))


def test_without_the_extra_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(choose, "find_spec", lambda name: None)
    with pytest.raises(ModelLoadError, match="stablelm") as unknown:
        choose.runs_by_transformers({"model_type": "stablelm"}, "auto")
    with pytest.raises(ConfigError, match="--model-impl transformers") as asked:
        choose.runs_by_transformers({"model_type": "llama"}, "transformers")
    for error in (unknown, asked):
        assert "twostroke[transformers]" in str(error.value.hint)
    assert not choose.runs_by_transformers({"model_type": "llama"}, "auto")


def test_it_is_said_that_this_is_slower(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_foreign(tmp_path, "stablelm")
    load_torch_executor(flat(tmp_path))
    assert "stablelm runs by transformers' code, slower" in caplog.text
