"""Mixtral: Mistral with experts."""

from __future__ import annotations

from twostroke.models.branches.attention import AttentionKind
from twostroke.models.branches.experts import ExpertsKind
from twostroke.models.family import DecoderFamily

FAMILY = DecoderFamily(
    branches=(
        AttentionKind(),
        ExpertsKind(
            router="block_sparse_moe.gate",
            expert="block_sparse_moe.experts.{}.",
            gate="w1",
            up="w3",
            down="w2",
        ),
    )
)
