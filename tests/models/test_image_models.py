"""The text part of an image model's checkpoint, as transformers saves it, gives the same logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForImageTextToText

from tests.checkpoints import random_tensors, tiny_config, write_checkpoint
from tests.models.parity import OPTIONS, TOKENS, TOLERANCE, whole_logits
from tests.models.tiny_families import FAMILIES
from tests.steps import StepDriver
from twostroke.core.errors import ModelLoadError

_TOWER = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
MROPE: dict[str, Any] = {"rope_type": "default", "type": "mrope", "mrope_section": [1, 1, 2]}
# Of each: its text part, and its tower.
IMAGE_MODELS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "gemma3": (FAMILIES["gemma3"], _TOWER),
    "gemma4": (FAMILIES["gemma4-shared"], {**_TOWER, "head_dim": 8, "num_key_value_heads": 2}),
    "llama4": (
        FAMILIES["llama4"],
        {**_TOWER, "vision_output_dim": 16, "projector_input_dim": 16, "projector_output_dim": 16},
    ),
    "mistral3": (tiny_config("mistral", sliding_window=None, head_dim=12), _TOWER),
    "qwen2_vl": (
        tiny_config("qwen2_vl_text", rope_scaling=MROPE, attention_dropout=0.0),
        {"depth": 1, "embed_dim": 16, "hidden_size": 32, "num_heads": 2},
    ),
    "qwen2_5_vl": (
        tiny_config("qwen2_5_vl_text", rope_scaling=MROPE, tie_word_embeddings=True),
        {"depth": 1, "hidden_size": 16, "out_hidden_size": 32, "num_heads": 2},
    ),
    "qwen3_vl": (
        tiny_config(
            "qwen3_vl_text", head_dim=12, rope_scaling={**MROPE, "mrope_section": [2, 2, 2]}
        ),
        {"depth": 1, "hidden_size": 16, "out_hidden_size": 32, "num_heads": 2},
    ),
    "qwen3_5": (FAMILIES["qwen3.5"], {"depth": 1, "hidden_size": 16, "num_heads": 2}),
    "qwen3_5_moe": (FAMILIES["qwen3.5-moe"], {"depth": 1, "hidden_size": 16, "num_heads": 2}),
}


def save(model_type: str, folder: Path) -> Any:
    text, vision = IMAGE_MODELS[model_type]
    own = (
        {"model_type": {"mistral3": "pixtral"}.get(model_type)} if model_type == "mistral3" else {}
    )
    config = AutoConfig.for_model(
        model_type,
        text_config=text,
        vision_config={**vision, **own},
        tie_word_embeddings=text["tie_word_embeddings"],
    )
    torch.manual_seed(0)
    model = AutoModelForImageTextToText.from_config(config, attn_implementation="eager")
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape)
        parameter.data = 1 + 0.2 * noise if "norm" in name else 0.1 * noise
    model.eval().save_pretrained(folder)
    return model


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("model_type", IMAGE_MODELS)
def test_text_gives_the_logits_of_transformers(model_type: str, tmp_path: Path) -> None:
    model = save(model_type, tmp_path)
    with torch.inference_mode():
        expected = model(input_ids=torch.tensor([TOKENS])).logits[0].float()
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert any("vision" in name or "visual" in name for name in file.keys())  # noqa: SIM118
    driver = StepDriver.load(tmp_path, **OPTIONS)
    assert (whole_logits(driver.executor) - expected).abs().max() < TOLERANCE
    driver.reset()
    assert (driver.chunked_logits(TOKENS, [20, 1, 24]) - expected).abs().max() < TOLERANCE


def test_an_unknown_text_part_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        '{"model_type": "gemma3", "text_config": {"model_type": "gpt2"}}'
    )
    with pytest.raises(ModelLoadError, match="model_type is 'gpt2'"):
        StepDriver.load(tmp_path, **OPTIONS)


@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("qwen3.5", "mtp.layers.0.self_attn.q_proj.weight"),
        ("gemma4-shared", "model.layers.4.self_attn.k_proj.weight"),
        ("gemma4-shared", "model.layers.5.self_attn.v_proj.weight"),
    ],
)
def test_what_nothing_reads_is_ignored(family: str, name: str, tmp_path: Path) -> None:
    tensors = random_tensors(FAMILIES[family])
    assert name not in tensors
    plain = StepDriver.load(write_checkpoint(tmp_path / "plain", FAMILIES[family]), **OPTIONS)
    tensors[name] = torch.ones(3)
    folder = write_checkpoint(tmp_path / "more", FAMILIES[family], tensors)
    more = StepDriver.load(folder, **OPTIONS)
    assert torch.equal(whole_logits(more.executor), whole_logits(plain.executor))


def test_experts_may_lie_in_common_tensors(tmp_path: Path) -> None:
    raw = FAMILIES["qwen3-moe"]
    apart = random_tensors(raw)
    plain = StepDriver.load(write_checkpoint(tmp_path / "apart", raw, apart), **OPTIONS)
    together = {name: tensor for name, tensor in apart.items() if ".experts." not in name}
    for layer in range(raw["num_hidden_layers"]):
        own = f"model.layers.{layer}.mlp.experts."
        if f"{own}0.up_proj.weight" not in apart:
            continue  # an MLP
        experts = [
            [apart[f"{own}{index}.{part}.weight"] for part in ("gate_proj", "up_proj", "down_proj")]
            for index in range(raw["num_experts"])
        ]
        together[f"{own}gate_up_proj"] = torch.stack([torch.cat(each[:2]) for each in experts])
        together[f"{own}down_proj"] = torch.stack([each[2] for each in experts])
    folder = write_checkpoint(tmp_path / "together", raw, together)
    driver = StepDriver.load(folder, **OPTIONS)
    assert torch.equal(whole_logits(driver.executor), whole_logits(plain.executor))
