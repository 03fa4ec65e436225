"""Protects: checkpoints are read as they are meant, and what is wrong with one is named."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.checkpoints import random_tensors, tiny_config, write_checkpoint
from twostroke.checkpoints.open_checkpoint import open_checkpoint
from twostroke.core.errors import InsufficientMemoryError, ModelLoadError
from twostroke.models.decoder import Decoder
from twostroke.models.support import read_runnable
from twostroke.runtime import weights
from twostroke.runtime.reference import naive_logits

RAW = tiny_config("llama")


def load(folder: Path, dtype: str = "auto") -> Decoder:
    return weights.load_model(
        open_checkpoint(folder),
        read_runnable(open_checkpoint(folder)),
        dtype,
        torch.device("cpu"),
        64,
    )


def refused(
    folder: Path, tensors: dict[str, torch.Tensor], raw: dict[str, Any] = RAW
) -> ModelLoadError:
    write_checkpoint(folder, raw, tensors)
    with pytest.raises(ModelLoadError) as failure:
        load(folder)
    assert failure.value.hint
    return failure.value


def test_sharded_and_single_checkpoints_give_the_same_model(tmp_path: Path) -> None:
    single = load(write_checkpoint(tmp_path / "single", RAW))
    sharded = load(write_checkpoint(tmp_path / "sharded", RAW, shards=3))
    assert torch.equal(naive_logits(single, [1, 2, 3]), naive_logits(sharded, [1, 2, 3]))


def test_a_bar_shows_on_a_terminal_while_loading_takes_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_checkpoint(tmp_path, RAW)
    load(folder)
    assert capsys.readouterr().err == ""  # not a terminal
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    load(folder)
    assert capsys.readouterr().err == ""  # loaded before anybody would look
    monkeypatch.setattr(weights, "PROGRESS_AFTER_SECONDS", 0.0)
    monkeypatch.setenv("TERM", "xterm")
    load(folder)
    assert "loading weights" in capsys.readouterr().err


def test_dtypes_are_converted(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, RAW, random_tensors(RAW, dtype=torch.float16))
    assert load(folder).dtype == torch.float32  # config.json says so
    assert load(folder, "bfloat16").dtype == torch.bfloat16
    silent = {name: value for name, value in RAW.items() if name != "torch_dtype"}
    assert (
        load(write_checkpoint(tmp_path, silent, random_tensors(RAW, dtype=torch.float16))).dtype
        == torch.float16
    )


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    tensors = random_tensors(RAW)
    del tensors["model.layers.1.self_attn.k_proj.weight"]
    assert "lacks model.layers.1.self_attn.k_proj.weight" in refused(tmp_path, tensors).message


def test_an_unexpected_tensor_is_named(tmp_path: Path) -> None:
    tensors = {**random_tensors(RAW), "model.layers.0.self_attn.q_proj.bias": torch.zeros(32)}
    assert (
        "does not have: model.layers.0.self_attn.q_proj.bias" in refused(tmp_path, tensors).message
    )


def test_harmless_extra_tensors_are_ignored(tmp_path: Path) -> None:
    raw = tiny_config("llama", tie_word_embeddings=True)
    extra = {
        "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4),
        "lm_head.weight": torch.ones(96, 32),
    }
    plain = load(write_checkpoint(tmp_path / "plain", raw))
    model = load(write_checkpoint(tmp_path / "more", raw, {**random_tensors(raw), **extra}))
    assert torch.equal(naive_logits(model, [1, 2, 3]), naive_logits(plain, [1, 2, 3]))


def test_a_wrong_shape_is_named_with_both_shapes(tmp_path: Path) -> None:
    tensors = {**random_tensors(RAW), "model.layers.0.mlp.up_proj.weight": torch.zeros(55, 32)}
    message = refused(tmp_path, tensors).message
    assert "model.layers.0.mlp.up_proj.weight" in message
    assert "(55, 32)" in message and "expected (56, 32)" in message


def test_quantized_tensors_are_refused(tmp_path: Path) -> None:
    tensors = {**random_tensors(RAW), "model.norm.weight": torch.ones(32, dtype=torch.int8)}
    assert "stored as I8" in refused(tmp_path, tensors).message


def test_a_broken_file_is_refused(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, RAW)
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ModelLoadError, match="cannot read") as failure:
        load(folder)
    assert failure.value.hint


def test_too_little_memory_is_noticed_before_loading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_checkpoint(tmp_path, RAW)
    monkeypatch.setattr(weights, "free_memory", lambda device: 50_000)
    monkeypatch.setattr(weights.StoredParameters, "pop", lambda *args: pytest.fail("read weights"))
    with pytest.raises(
        InsufficientMemoryError, match=r"the weights need .* KiB, but cpu has 48\.8 KiB free"
    ):
        load(folder)
