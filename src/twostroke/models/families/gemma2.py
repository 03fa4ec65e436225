"""Gemma 2 and 3: norms before and after each branch, with one more than their weight.

Gemma 2 has soft caps, Gemma 3 norms of heads.
"""

from __future__ import annotations

from twostroke.layers.norm import OffsetNorm
from twostroke.models.branches.attention import AttentionKind
from twostroke.models.branches.mlp import MlpKind
from twostroke.models.family import DecoderFamily

FAMILY = DecoderFamily(
    branches=(
        AttentionKind(added_norm="post_attention_layernorm"),
        MlpKind(norm="pre_feedforward_layernorm", added_norm="post_feedforward_layernorm"),
    ),
    make_norm=OffsetNorm,
)
