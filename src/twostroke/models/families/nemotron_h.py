"""Nemotron-H: each layer is Mamba-2, attention, an MLP or experts. Mamba-2: the first alone."""

from __future__ import annotations

from twostroke.models.branches.attention import AttentionKind
from twostroke.models.branches.experts import ExpertsKind
from twostroke.models.branches.mamba2 import Mamba2Kind
from twostroke.models.branches.mlp import MlpKind
from twostroke.models.family import DecoderFamily

_ATTENTION = AttentionKind(
    norm="norm",
    query="mixer.q_proj",
    key="mixer.k_proj",
    value="mixer.v_proj",
    output="mixer.o_proj",
)
_EXPERTS = ExpertsKind(
    norm="norm",
    router="mixer.gate",
    correction="mixer.gate.e_score_correction_bias",
    expert="mixer.experts.{}.",
    shared="mixer.shared_experts.",
    narrow=("mixer.fc1_latent_proj", "mixer.fc2_latent_proj"),
)
FAMILY = DecoderFamily(
    branches=(
        Mamba2Kind(norm="norm", prefix="mixer."),
        _ATTENTION,
        MlpKind(norm="norm", up="mixer.up_proj", down="mixer.down_proj"),
        _EXPERTS,
    ),
    layer="backbone.layers.{}.",
    embedding="backbone.embeddings.weight",
    norm="backbone.norm_f.weight",
)
