"""DeepSeek-V2 and V3, Kimi K2: latent attention, MLPs in the first layers, then experts."""

from __future__ import annotations

from twostroke.models.branches.experts import ExpertsKind
from twostroke.models.branches.latent import LatentKind
from twostroke.models.branches.mlp import MlpKind
from twostroke.models.family import DecoderFamily

FAMILY = DecoderFamily(
    branches=(LatentKind(), MlpKind(), ExpertsKind(shared="mlp.shared_experts.")),
    ignored=("model.layers.61.",),  # a head for two tokens, after the 61 layers of V3 and K2
)
