"""Protects: models that give other tokens have another fingerprint, wherever their files are."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from twostroke.checkpoints.open_checkpoint import find_checkpoint, open_checkpoint
from twostroke.core.config import EngineConfig
from twostroke.engine.executor import ExecutorInfo
from twostroke.engine.workers.fingerprint import fingerprint_of
from twostroke.engine.workers.greeting import ModelFingerprint

INFO = ExecutorInfo(model_id="m", vocab_size=9, max_model_len=99, num_blocks=9, block_size=16)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    shutil.copytree(find_checkpoint("pilot-draft").path, tmp_path / "copy")
    return tmp_path / "copy"


def fingerprint(path: Path, info: ExecutorInfo = INFO, **options: object) -> ModelFingerprint:
    checkpoint = open_checkpoint(path)
    config = EngineConfig.from_flat({"model": "m", **options})
    return fingerprint_of(checkpoint, checkpoint.tokenizer(), config, info)


def test_a_copy_is_the_same_model(copy: Path) -> None:
    assert fingerprint(copy) == fingerprint(find_checkpoint("pilot-draft").path)


def test_a_tensor_that_differs_makes_another_model(copy: Path) -> None:
    former = fingerprint(copy)
    stored = max(open_checkpoint(copy).tensors().values(), key=lambda tensor: tensor.nbytes)
    with stored.path.open("r+b") as file:
        file.seek(stored.offset + stored.nbytes // 2)
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte[0] ^ 1]))
    changed = fingerprint(copy)
    assert changed.weights != former.weights and changed.tokenizer == former.tokenizer


def test_what_it_computes_with_makes_another_model(copy: Path) -> None:
    prints = [
        fingerprint(copy),
        fingerprint(copy, quantization="int8"),
        fingerprint(copy, dtype="float32"),
        fingerprint(copy, replace(INFO, max_model_len=98)),
        fingerprint(copy, replace(INFO, kv_cache_dtype="int8")),
    ]
    assert len({each.weights for each in prints}) == len(prints)
