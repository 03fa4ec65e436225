"""Protects: what ``twostroke quantize`` writes is read by transformers, with compressed-tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.checkpoints import random_tensors, tiny_config, write_checkpoint
from tests.quantised.test_served import load
from twostroke.checkpoints.open_checkpoint import open_checkpoint
from twostroke.runtime.checkpoints.quantise import quantise
from twostroke.runtime.reference import naive_logits

IDS = [1, 5, 9, 77, 42, 3, 8, 100]
SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "vocab_size": 331,
    "torch_dtype": "bfloat16",
}


@pytest.mark.parametrize("to", ["int4", "int8"])
@pytest.mark.parametrize("tied", [False, True])
def test_the_same_weights_elsewhere(to: str, tied: bool, tmp_path: Path) -> None:
    """Logits are equal where activations are not rounded (W4A16), and close where they are."""
    raw = tiny_config("llama", **SIZES, tie_word_embeddings=tied)
    write_checkpoint(tmp_path / "was", raw, random_tensors(raw, dtype=torch.bfloat16, std=0.15))
    folder = tmp_path / "now"
    quantise(open_checkpoint(tmp_path / "was"), to, folder, lambda count: None, head=False)
    ours = naive_logits(load(folder, "float32"), IDS)
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        logits = theirs(torch.tensor([IDS])).logits[0]
    if to == "int4":
        assert (logits - ours).abs().max() < 1e-4
    else:  # W8A8: transformers rounds activations, which decoded weights of ours do not
        assert torch.nn.functional.cosine_similarity(logits, ours).min() > 0.995
