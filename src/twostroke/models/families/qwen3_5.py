"""Qwen3.5 and 3.6: three layers of linear attention, then one of gated attention; MLPs, experts."""

from __future__ import annotations

from twostroke.layers.norm import OffsetNorm
from twostroke.models.branches.attention import AttentionKind
from twostroke.models.branches.experts import ExpertsKind
from twostroke.models.branches.gated_delta import GatedDeltaKind
from twostroke.models.branches.mlp import MlpKind
from twostroke.models.family import DecoderFamily

FAMILY = DecoderFamily(
    branches=(GatedDeltaKind(), AttentionKind(), MlpKind(), ExpertsKind()),
    make_norm=OffsetNorm,
    predictor="mtp.",
    ignored=("mtp.",),
)
