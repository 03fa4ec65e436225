"""Phi-3 and Phi-4: query, key and value in one tensor, gate and up in another."""

from __future__ import annotations

from twostroke.models.branches.attention import AttentionKind
from twostroke.models.branches.mlp import MlpKind
from twostroke.models.family import DecoderFamily

FAMILY = DecoderFamily(
    branches=(AttentionKind(fused="self_attn.qkv_proj"), MlpKind(fused="mlp.gate_up_proj"))
)
