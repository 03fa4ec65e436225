"""Protects: a draft model or Medusa heads that cannot work are refused with what is different."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoints import TINY, tiny_config, write_checkpoint
from tests.spec_decode.heads import head_tensors, write_heads
from twostroke.core.config import EngineConfig
from twostroke.core.errors import ConfigError, ModelLoadError, TwostrokeError
from twostroke.runtime.loading import load_torch_executor
from twostroke.runtime.torch_executor import TorchExecutor


def folder_with(path: Path, tokens: dict[str, int] | None, **changes: Any) -> Path:
    folder = write_checkpoint(path, tiny_config("llama", **changes))
    if tokens is not None:
        content = {"model": {"vocab": tokens}, "added_tokens": [{"id": 90, "content": "<end>"}]}
        (folder / "tokenizer.json").write_text(json.dumps(content))
    return folder


def load(target: Path, **speculative_config: Any) -> TorchExecutor:
    options = {"model": str(target), "device": "cpu", "kv_cache_memory": 2**20}
    options |= {"max_model_len": 64, "speculative_config": speculative_config}
    return load_torch_executor(EngineConfig.from_flat(options))


VOCABULARY = {"a": 0, "b": 1, "c": 2}


def test_memory_of_both_models_is_counted(tmp_path: Path) -> None:
    target = folder_with(tmp_path / "target", VOCABULARY)
    draft = folder_with(tmp_path / "draft", dict(reversed(VOCABULARY.items())), hidden_size=16)
    alone, both = load(target, method="ngram").info, load(target, model=str(draft)).info
    assert both.weight_bytes > alone.weight_bytes
    assert both.kv_bytes_per_token > alone.kv_bytes_per_token
    assert both.num_blocks < alone.num_blocks


@pytest.mark.parametrize(
    ("tokens", "changes", "says"),
    [
        (VOCABULARY, {"vocab_size": 80}, "a vocabulary of 80 tokens, the target 96"),
        ({"a": 0, "c": 1, "b": 2}, {}, "2 tokens another meaning: 1 is 'c' there and 'b' here"),
        ({"a": 0, "b": 1}, {}, "1 tokens another meaning: 2 is None there and 'c' here"),
        (None, {"max_position_embeddings": 32}, "a context of 32 tokens, the target 64"),
    ],
)
def test_an_unfit_draft_model_is_refused_with_the_difference(
    tmp_path: Path, tokens: dict[str, int] | None, changes: dict[str, Any], says: str
) -> None:
    target = folder_with(tmp_path / "target", VOCABULARY)
    draft = folder_with(tmp_path / "draft", tokens, **changes)
    with pytest.raises(ConfigError, match=says) as caught:
        load(target, method="draft", model=str(draft))
    assert caught.value.hint


def test_a_draft_model_must_be_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no draft model is known"):
        load(folder_with(tmp_path / "target", None), method="draft")


@pytest.mark.parametrize("exit_layer", [2, 5])
def test_an_exit_lies_before_the_end(tmp_path: Path, exit_layer: int) -> None:
    target = folder_with(tmp_path / "target", None)
    with pytest.raises(ConfigError, match="the model has 2 layers"):
        load(target, method="early-exit", exit_layer=exit_layer)


HIDDEN, VOCAB = TINY["hidden_size"], TINY["vocab_size"]


def test_the_memory_of_heads_is_counted(tmp_path: Path) -> None:
    target = folder_with(tmp_path / "target", None)
    heads = write_heads(tmp_path / "heads", head_tensors(HIDDEN, VOCAB))
    alone, both = load(target, method="ngram").info, load(target, method="medusa", model=str(heads))
    assert both.info.weight_bytes - alone.weight_bytes == 4 * 3 * (HIDDEN + 1 + VOCAB) * HIDDEN


@pytest.mark.parametrize(
    ("hidden", "vocabulary", "says"),
    [
        (16, None, "hidden size of 16, the target's is 32"),
        (16, VOCAB, "hidden size of 16, the target's is 32"),
        (HIDDEN, 80, "a vocabulary of 80 tokens, the target 96"),
    ],
)
def test_unfit_heads_are_refused_with_the_difference(
    tmp_path: Path, hidden: int, vocabulary: int | None, says: str
) -> None:
    heads = write_heads(tmp_path / "heads", head_tensors(hidden, vocabulary))
    with pytest.raises(ConfigError, match=says) as caught:
        load(folder_with(tmp_path / "target", None), method="medusa", model=str(heads))
    assert caught.value.hint


def test_heads_with_another_tokenizer_are_refused(tmp_path: Path) -> None:
    heads = write_heads(tmp_path / "heads", head_tensors(HIDDEN))
    content = {"model": {"vocab": {"a": 0, "c": 1, "b": 2}}}
    (heads / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=r"Medusa heads .* gives? .* tokens another meaning"):
        load(folder_with(tmp_path / "target", VOCABULARY), method="medusa", model=str(heads))


@pytest.mark.parametrize(
    ("config", "spoil", "says"),
    [
        ({"medusa_num_heads": None}, "", "config.json: medusa_num_heads is missing"),
        ({"medusa_num_heads": 65}, "", "from 1 to 64"),
        ({"medusa_num_heads": 4}, "", "lacks 3.0.linear.weight"),
        ({"medusa_num_heads": 2}, "", "does not have: 2.0.linear"),
        ({"medusa_num_layers": 2}, "", "lacks 0.1.linear.weight"),
        ({}, "pickle", "has no *.safetensors"),
        ({}, "truncate", "cannot read"),
        ({}, "config", "no medusa_num_heads"),
    ],
)
def test_broken_heads_are_refused_with_a_hint(
    tmp_path: Path, config: dict[str, Any], spoil: str, says: str
) -> None:
    heads = write_heads(tmp_path / "heads", head_tensors(HIDDEN), **config)
    weights = heads / "medusa_lm_head.safetensors"
    if spoil == "pickle":
        weights.rename(weights.with_suffix(".pt"))
    elif spoil == "truncate":
        weights.write_bytes(weights.read_bytes()[:-8])
    elif spoil == "config":
        (heads / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(ModelLoadError) as caught:
        load(folder_with(tmp_path / "target", None), method="medusa", model=str(heads))
    assert says in str(caught.value)
    assert caught.value.hint
    assert spoil != "pickle" or "save_file" in caught.value.hint


def test_heads_must_be_named(tmp_path: Path) -> None:
    with pytest.raises(TwostrokeError, match="no Medusa heads are known"):
        load(folder_with(tmp_path / "target", None), method="medusa")
