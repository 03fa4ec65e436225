"""MXFP4 is decoded as transformers does it, and experts in it compute what decoded ones compute."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from tests.checkpoints import random_tensors, write_checkpoint
from tests.models.parity import OPTIONS, TOKENS, TOLERANCE, transformers_logits, whole_logits
from tests.models.tiny_families import FAMILIES
from tests.steps import StepDriver
from twostroke.core.errors import ModelLoadError
from twostroke.kernels.library import load_library
from twostroke.layers.mxfp4 import Mxfp4Linear, decode_mxfp4

RAW = {**FAMILIES["gpt-oss"], "intermediate_size": 64}
QUANTIZED = {
    "quant_method": "mxfp4",
    "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router"],
}


def random_bytes(*shape: int, least: int = 0, most: int = 255) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randint(least, most + 1, shape, dtype=torch.uint8, generator=generator)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_decoded_weights_are_those_of_transformers(dtype: torch.dtype) -> None:
    # Every byte, and scales from the smallest that bfloat16 holds to the largest.
    blocks = torch.arange(256, dtype=torch.uint8).repeat(3).view(2, 6, 4, 16)
    scales = random_bytes(2, 6, 4, least=3, most=250)
    expected = convert_moe_packed_tensors(blocks, scales, dtype=dtype)  # [experts, in, out]
    assert torch.equal(decode_mxfp4(blocks, scales, dtype), expected.transpose(1, 2))


def test_a_layer_multiplies_with_the_decoded_weight() -> None:
    blocks, scales = random_bytes(6, 2, 16), random_bytes(6, 2, least=120, most=130)
    x, bias, residual = torch.randn(3, 64), torch.randn(6), torch.randn(3, 6)
    layer, weight = Mxfp4Linear(blocks, scales, bias), decode_mxfp4(blocks, scales, torch.float32)
    assert torch.equal(layer(x, residual), residual + (x @ weight.T + bias))
    assert torch.equal(layer.weight_rows(torch.tensor([4, 1])), weight[[4, 1]])
    assert layer.nbytes == 6 * 2 * 17


def checkpoints(folder: Path) -> tuple[Path, dict[str, Tensor]]:
    """A checkpoint in MXFP4, and its tensors as they are decoded."""
    decoded = random_tensors(RAW)
    stored = dict(decoded)
    for name in decoded:
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            continue
        count, inputs, outputs = stored.pop(name).shape
        blocks = random_bytes(count, outputs, inputs // 32, 16)
        scales = random_bytes(count, outputs, inputs // 32, least=121, most=124)
        stored |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        decoded[name] = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
    raw = {**RAW, "quantization_config": QUANTIZED}
    return write_checkpoint(folder, raw, stored), decoded


def test_logits_are_those_of_decoded_experts(tmp_path: Path) -> None:
    folder, decoded = checkpoints(tmp_path)
    driver = StepDriver.load(folder, **OPTIONS)
    expected = transformers_logits(RAW, decoded, torch.float32)
    assert (whole_logits(driver.executor) - expected).abs().max() < TOLERANCE
    driver.reset()
    assert (driver.chunked_logits(TOKENS, [20, 1, 24]) - expected).abs().max() < TOLERANCE
    matrices = 2 * 5 * 3 * 32 * 64
    whole = driver.executor.model.weight_bytes
    plain = StepDriver.load(write_checkpoint(tmp_path / "plain", RAW, decoded), **OPTIONS)
    of_plain = plain.executor.model.weight_bytes
    assert of_plain - whole == matrices * 4 - matrices * 17 // 32


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 48}, "hidden_size must be a multiple of 32 for mxfp4, got 48"),
        ({"intermediate_size": 40}, "intermediate_size must be a multiple of 32 for mxfp4"),
        ({"model_type": "llama", "num_local_experts": 0}, r"quantized \(mxfp4\)"),
    ],
)
def test_what_is_no_mxfp4_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    raw = {**RAW, "quantization_config": QUANTIZED, **changes}
    with pytest.raises(ModelLoadError, match=message):
        StepDriver.load(write_checkpoint(tmp_path, raw, {"a": torch.ones(1)}), **OPTIONS)


@pytest.mark.skipif(load_library() is None, reason="needs the compiled kernels")
def test_kernels_multiply_with_experts_as_they_are_stored(tmp_path: Path) -> None:
    folder, decoded = checkpoints(tmp_path)
    driver = StepDriver.load(folder, **{**OPTIONS, "dtype": "bfloat16"})
    expected = transformers_logits(RAW, decoded, torch.float32)
    distance = whole_logits(driver.executor).float() - expected
    assert 0 < float(distance.std()) < 0.05 * float(expected.std())
    matrices = 2 * 5 * 3 * 32 * 64
    plain = StepDriver.load(
        write_checkpoint(tmp_path / "plain", RAW, decoded), **{**OPTIONS, "dtype": "bfloat16"}
    )
    saved = plain.executor.model.weight_bytes - driver.executor.model.weight_bytes
    assert saved == matrices * 2 - matrices * 17 // 32
