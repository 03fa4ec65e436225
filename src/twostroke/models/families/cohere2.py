"""Command R7B and A: attention and MLP read the same state; layers with a window rotate."""

from __future__ import annotations

from twostroke.layers.norm import CenteredNorm
from twostroke.models.branches.attention import AttentionKind
from twostroke.models.branches.mlp import MlpKind
from twostroke.models.branches.parallel import ParallelKind
from twostroke.models.family import DecoderFamily

FAMILY = DecoderFamily(
    branches=(ParallelKind((AttentionKind(), MlpKind(norm="input_layernorm"))),),
    make_norm=CenteredNorm,
)
