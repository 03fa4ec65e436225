"""Qwen2 and Qwen3 with experts: Llama's names; experts in some layers, MLPs in others."""

from __future__ import annotations

from twostroke.models.branches.attention import AttentionKind
from twostroke.models.branches.experts import ExpertsKind
from twostroke.models.branches.mlp import MlpKind
from twostroke.models.family import DecoderFamily

FAMILY = DecoderFamily(branches=(AttentionKind(), MlpKind(), ExpertsKind()))
