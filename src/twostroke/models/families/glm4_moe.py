"""GLM-4.5 and 4.6: as Qwen's models with experts, but for the shared experts' names."""

from __future__ import annotations

from twostroke.models.branches.attention import AttentionKind
from twostroke.models.branches.experts import ExpertsKind
from twostroke.models.branches.mlp import MlpKind
from twostroke.models.family import DecoderFamily

FAMILY = DecoderFamily(
    branches=(AttentionKind(), MlpKind(), ExpertsKind(shared="mlp.shared_experts.")),
    ignored=("model.layers.46.", "model.layers.92."),  # heads for two tokens, of Air and 4.5
)
