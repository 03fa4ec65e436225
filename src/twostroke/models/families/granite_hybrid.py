"""Granite 4: Mamba-2 and some attention, each with an MLP, or experts beside a shared one."""

from __future__ import annotations

from twostroke.models.branches.attention import AttentionKind
from twostroke.models.branches.mamba2 import Mamba2Kind
from twostroke.models.branches.mlp import MlpKind
from twostroke.models.family import DecoderFamily

FAMILY = DecoderFamily(
    branches=(
        Mamba2Kind(),
        AttentionKind(),
        MlpKind(fused="shared_mlp.input_linear", down="shared_mlp.output_linear"),
    )
)
