"""Falcon-H1: Mamba-2 and attention side by side, much multiplied; Bamba: one or the other."""

from __future__ import annotations

from twostroke.models.branches.attention import AttentionKind
from twostroke.models.branches.mamba2 import Mamba2Kind
from twostroke.models.branches.mlp import MlpKind
from twostroke.models.branches.multiplied import MultipliedKind
from twostroke.models.branches.parallel import ParallelKind
from twostroke.models.family import DecoderFamily

_MLP = MlpKind(
    norm="pre_ff_layernorm",
    gate="feed_forward.gate_proj",
    up="feed_forward.up_proj",
    down="feed_forward.down_proj",
)
FAMILY = DecoderFamily(
    branches=(
        ParallelKind(
            (MultipliedKind(Mamba2Kind(), "state"), MultipliedKind(AttentionKind(), "attention"))
        ),
        MultipliedKind(_MLP, "mlp"),
    ),
    norm="model.final_layernorm.weight",
)
