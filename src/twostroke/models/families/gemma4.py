"""Gemma 4: Gemma 3's order of norms, embeddings for each layer, and experts beside MLPs."""

from __future__ import annotations

from twostroke.models.branches.attention import AttentionKind
from twostroke.models.branches.expert_stacks import ExpertStack
from twostroke.models.branches.experts import ExpertsKind
from twostroke.models.branches.layer_input import LayerInputKind
from twostroke.models.branches.mlp import MlpKind
from twostroke.models.branches.mlp_beside_experts import MlpBesideExpertsKind
from twostroke.models.family import DecoderFamily

_MLP = MlpKind(norm="pre_feedforward_layernorm", added_norm="post_feedforward_layernorm")
_EXPERTS = ExpertsKind(
    norm="pre_feedforward_layernorm_2",
    router="router.proj",
    expert="experts.",
    stack=ExpertStack(),
    expert_scale="router.per_expert_scale",
)
FAMILY = DecoderFamily(
    branches=(
        AttentionKind(added_norm="post_attention_layernorm"),
        MlpBesideExpertsKind(_MLP, _EXPERTS),
        LayerInputKind(),
    ),
)
