"""Tiny random checkpoints of decoders that only transformers has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

TINY: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 56,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GPT2 = {"n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 256, "n_inner": 56}
FOREIGN: dict[str, dict[str, Any]] = {
    "apertus": {},
    "arcee": {},
    "biogpt": {},
    "cohere": {"logit_scale": 0.5},  # logits are more than a product
    "diffllama": {},  # two attentions in a layer
    "ernie4_5": {"head_dim": 8},
    "exaone4": {"num_hidden_layers": 4, "sliding_window": 9, "sliding_window_pattern": 4},
    "gemma": {"head_dim": 16},
    "gpt2": GPT2,  # learnt positions
    "gpt_neox": {"rotary_pct": 0.5},
    "helium": {"head_dim": 8},
    "minimax_m2": {"head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2},
    "nanochat": {},
    "nemotron": {},
    "olmo": {"clip_qkv": 2.0},
    "olmoe": {"num_experts": 4, "num_experts_per_tok": 2},
    "opt": {"ffn_dim": 56, "word_embed_proj_dim": 32},
    "persimmon": {},
    "phi": {"partial_rotary_factor": 0.5},
    "seed_oss": {"head_dim": 8},
    "stablelm": {"partial_rotary_factor": 0.25},
    "starcoder2": {"sliding_window": 7},
    "vaultgemma": {"head_dim": 8, "sliding_window": 9, "final_logit_softcapping": 3.0},
}


def write_foreign(folder: Path, model_type: str, **changes: Any) -> Path:
    """Random float32 weights; norms lie around 1, so that a missing one is noticed."""
    import transformers

    fields = {**TINY, **FOREIGN.get(model_type, {}), **changes}
    config = transformers.AutoConfig.for_model(model_type, **fields)
    model = transformers.AutoModelForCausalLM.from_config(config)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            values = torch.randn(parameter.shape, generator=generator)
            is_norm = "norm" in name and name.endswith("weight")
            parameter.copy_(1 + 0.2 * values if is_norm else 0.3 * values)
    model.save_pretrained(folder)
    return folder


def logits_by_transformers(folder: Path, token_ids: list[int]) -> torch.Tensor:
    """``[tokens, vocab]`` in one pass, with the model's own attention."""
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, attn_implementation="eager", dtype=torch.float32
    )
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([token_ids])).logits[0].float()
    return logits
