"""GLM-4 (0414): norms before and after each branch; neighbours rotate, half of each head."""

from __future__ import annotations

from twostroke.models.branches.attention import AttentionKind
from twostroke.models.branches.mlp import MlpKind
from twostroke.models.family import DecoderFamily

FAMILY = DecoderFamily(
    branches=(
        AttentionKind(added_norm="post_self_attn_layernorm"),
        MlpKind(fused="mlp.gate_up_proj", added_norm="post_mlp_layernorm"),
    )
)
