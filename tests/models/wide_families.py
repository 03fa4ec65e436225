"""The tiny families with heads of multiples of 16, which the compiled kernels take."""

from __future__ import annotations

from typing import Any

from tests.models.tiny_families import FAMILIES

_LATENT = {
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
}


def widened(raw: dict[str, Any]) -> dict[str, Any]:
    """Of four heads of 16 elements each; in bfloat16."""
    changes: dict[str, Any] = {"hidden_size": 64, "torch_dtype": "bfloat16"}
    if "head_dim" in raw:
        changes["head_dim"] = 16
    if "global_head_dim" in raw:
        changes["global_head_dim"] = 32
    if "kv_lora_rank" in raw:
        changes |= _LATENT
    if "num_heads" in raw:  # of Mamba-2 alone: twice the hidden size together
        changes |= {"num_heads": 8, "head_dim": 16}
    if "mamba_n_heads" in raw:
        changes["mamba_n_heads"] = 2 * raw["mamba_n_heads"]
    return raw | changes


WIDE_FAMILIES = {name: widened(raw) for name, raw in FAMILIES.items()}
