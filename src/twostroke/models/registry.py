"""From ``model_type`` to the family that implements it, imported only when it is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from twostroke.core.errors import ModelLoadError

if TYPE_CHECKING:
    from twostroke.models.family import DecoderFamily

# The file in ``families`` of each.
MODEL_TYPES = {
    "bamba": "falcon_h1",
    "cohere2": "cohere2",
    "deepseek_v2": "deepseek",
    "deepseek_v3": "deepseek",
    "falcon_h1": "falcon_h1",
    "gemma2": "gemma2",
    "gemma3_text": "gemma2",
    "gemma4_text": "gemma4",
    "glm4": "glm4",
    "glm4_moe": "glm4_moe",
    "gpt_oss": "gpt_oss",
    "granite": "llama",
    "granitemoehybrid": "granite_hybrid",
    "kimi_k2": "deepseek",
    "lfm2": "lfm2",
    "llama": "llama",
    "llama4_text": "llama4",
    "mamba2": "mamba2",
    "mistral": "llama",
    "mixtral": "mixtral",
    "nemotron_h": "nemotron_h",
    "olmo2": "olmo2",
    "olmo3": "olmo2",
    "phi3": "phi3",
    "qwen2": "llama",
    "qwen2_moe": "qwen_moe",
    "qwen3": "llama",
    "qwen3_moe": "qwen_moe",
    "qwen3_5_moe_text": "qwen3_5",
    "qwen3_5_text": "qwen3_5",
    "qwen3_next": "qwen3_next",
    "smollm3": "llama",
}
# Models that read images, too: their text parts run.
IMAGE_MODELS = (
    *("gemma3", "gemma4", "llama4", "mistral3", "qwen2_vl", "qwen2_5_vl", "qwen3_vl"),
    *("qwen3_5", "qwen3_5_moe"),
)
# What these call theirs, where it is one of the families under another name.
TEXT_PARTS = ("qwen2_vl_text", "qwen2_5_vl_text", "qwen3_vl_text")


def decoder_family(model_type: str) -> DecoderFamily:
    """The family of an architecture. Raises ModelLoadError for an unknown one."""
    if model_type not in MODEL_TYPES:
        hint = "supported architectures: " + ", ".join(MODEL_TYPES)
        raise ModelLoadError(f"unknown architecture: model_type is {model_type!r}", hint=hint)
    module = import_module(f"twostroke.models.families.{MODEL_TYPES[model_type]}")
    family: DecoderFamily = module.FAMILY
    return family
