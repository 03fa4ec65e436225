"""Mamba-2 alone: no layer attends, so nothing is cached by the token."""

from __future__ import annotations

from twostroke.models.branches.mamba2 import Mamba2Kind
from twostroke.models.family import DecoderFamily

FAMILY = DecoderFamily(
    branches=(Mamba2Kind(norm="norm", prefix="mixer."),),
    layer="backbone.layers.{}.",
    embedding="backbone.embeddings.weight",
    norm="backbone.norm_f.weight",
)
