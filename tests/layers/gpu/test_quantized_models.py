"""Models with weights of 8 and 4 bits on a GPU: near what they round, exact where a file is so."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from tests.checkpoints import random_tensors, tiny_config, write_checkpoint
from twostroke.checkpoints.open_checkpoint import open_checkpoint
from twostroke.models.decoder import Decoder
from twostroke.models.support import read_runnable
from twostroke.runtime.reference import naive_logits
from twostroke.runtime.weights import load_model

if TYPE_CHECKING:
    from twostroke.layers.gpu.operators import GpuOperators

TOKENS = [5, 9, 70, 3, 11, 42]


def load(folder: Path, device: torch.device, quantization: str | None = None) -> Decoder:
    """In float32, of which a CPU's own kernels know nothing."""
    checkpoint = open_checkpoint(folder)
    spec = read_runnable(checkpoint)
    return load_model(checkpoint, spec, "float32", device, 64, quantization)


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_rounding_at_start(
    quantization: str, tmp_path: Path, operators: GpuOperators, device: torch.device
) -> None:
    raw = tiny_config("llama", hidden_size=64, intermediate_size=96)
    folder = write_checkpoint(tmp_path, raw, random_tensors(raw, std=0.1))
    exact = load(folder, device)
    rounded = load(folder, device, quantization)
    assert rounded.weight_bytes < exact.weight_bytes / 2
    wanted, own = (naive_logits(each, TOKENS).log_softmax(-1) for each in (exact, rounded))
    divergence = (wanted.exp() * (wanted - own)).sum(-1)  # nats per position
    assert 0 < float(divergence.mean()) < (0.01 if quantization == "int8" else 0.3)


@pytest.mark.parametrize("case", ["w4a16-wide-groups", "w8a8", "gptq", "awq", "gptq-zeros"])
def test_a_checkpoint_stays_as_it_is_stored(
    case: str, tmp_path: Path, operators: GpuOperators, device: torch.device
) -> None:
    # A GPU's machine need not have all that these import.
    packers = pytest.importorskip("tests.quantised.packers", exc_type=ImportError)
    served = pytest.importorskip("tests.quantised.test_served", exc_type=ImportError)
    _, (config, pack) = served.KEPT[case]
    quantised, full, _ = packers.write_both(tmp_path, config, pack)
    kept, whole = load(quantised, device), load(full, device)
    assert kept.weight_bytes < whole.weight_bytes * 0.6
    wanted = naive_logits(whole, TOKENS)
    torch.testing.assert_close(naive_logits(kept, TOKENS), wanted, atol=1e-4, rtol=1e-4)
