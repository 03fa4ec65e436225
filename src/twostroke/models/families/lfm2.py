"""LFM2: gated short convolutions, and attention in some layers."""

from __future__ import annotations

from twostroke.models.branches.attention import AttentionKind
from twostroke.models.branches.mlp import MlpKind
from twostroke.models.branches.short_convolution import ShortConvolutionKind
from twostroke.models.family import DecoderFamily

FAMILY = DecoderFamily(
    branches=(
        ShortConvolutionKind(),
        AttentionKind(
            norm="operator_norm",
            output="self_attn.out_proj",
            query_norm="self_attn.q_layernorm",
            key_norm="self_attn.k_layernorm",
        ),
        MlpKind(
            norm="ffn_norm",
            gate="feed_forward.w1",
            up="feed_forward.w3",
            down="feed_forward.w2",
        ),
    ),
    norm="model.embedding_norm.weight",
)
