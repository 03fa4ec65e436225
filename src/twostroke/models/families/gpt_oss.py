"""gpt-oss: attention with sinks, every other layer in a window, and experts of clamped SwiGLU."""

from __future__ import annotations

from twostroke.models.branches.attention import AttentionKind
from twostroke.models.branches.expert_stacks import ExpertStack
from twostroke.models.branches.experts import ExpertsKind
from twostroke.models.family import DecoderFamily

FAMILY = DecoderFamily(
    branches=(
        AttentionKind(),
        ExpertsKind(
            router="mlp.router",
            expert="mlp.experts.",
            stack=ExpertStack(inputs_first=True, take_turns=True),
        ),
    )
)
