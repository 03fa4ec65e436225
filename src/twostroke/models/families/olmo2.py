"""OLMo 2: norms only of what is added, and of all heads together."""

from __future__ import annotations

from twostroke.models.branches.attention import AttentionKind
from twostroke.models.branches.mlp import MlpKind
from twostroke.models.family import DecoderFamily

FAMILY = DecoderFamily(
    branches=(
        AttentionKind(norm="", added_norm="post_attention_layernorm"),
        MlpKind(norm="", added_norm="post_feedforward_layernorm"),
    )
)
