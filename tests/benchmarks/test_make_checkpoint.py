"""Protects: the checkpoints that benchmarks make are read by the engine and by `tokenizers`."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer

from tests.benchmarks.tiny import tiny_checkpoint
from tests.steps import StepDriver


def test_a_written_checkpoint_loads_and_its_tokenizer_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_checkpoint(tmp_path, monkeypatch)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == 300
    token_ids = tokenizer.encode("<|user|>Grüße<|end|>").ids
    assert token_ids[0] == 259 and token_ids[-1] == 257
    assert tokenizer.decode(token_ids) == "Grüße"
    driver = StepDriver.load(tmp_path)
    driver.add("a", token_ids)
    assert len(driver.step({"a": len(token_ids)}).token_ids["a"]) == 1
    assert driver.executor.info.eos_token_ids == {257}
