"""Llama 4: chunks where layers rotate, growing queries where they do not, few of many experts."""

from __future__ import annotations

from twostroke.models.branches.attention import AttentionKind
from twostroke.models.branches.expert_stacks import ExpertStack
from twostroke.models.branches.experts import ExpertsKind
from twostroke.models.branches.mlp import MlpKind
from twostroke.models.family import DecoderFamily

FAMILY = DecoderFamily(
    branches=(
        AttentionKind(),
        MlpKind(
            gate="feed_forward.gate_proj",
            up="feed_forward.up_proj",
            down="feed_forward.down_proj",
        ),
        ExpertsKind(
            router="feed_forward.router",
            expert="feed_forward.experts.",
            stack=ExpertStack(inputs_first=True),
            shared="feed_forward.shared_expert.",
        ),
    )
)
