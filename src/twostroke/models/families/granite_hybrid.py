"""Granite 4: Mamba-2 and some attention, each with an MLP, or experts beside a shared one."""

from __future__ import annotations

from twostroke.models.branches.attention import AttentionKind
from twostroke.models.branches.expert_stacks import ExpertStack
from twostroke.models.branches.experts import ExpertsKind
from twostroke.models.branches.mamba2 import Mamba2Kind
from twostroke.models.branches.mlp import MlpKind
from twostroke.models.family import DecoderFamily

_INPUT, _OUTPUT = "shared_mlp.input_linear", "shared_mlp.output_linear"
FAMILY = DecoderFamily(
    branches=(
        Mamba2Kind(),
        AttentionKind(),
        MlpKind(fused=_INPUT, down=_OUTPUT),
        ExpertsKind(
            router="block_sparse_moe.router.layer",
            expert="block_sparse_moe.",
            stack=ExpertStack(gate_up="input_linear.weight", down="output_linear.weight"),
            shared_fused=_INPUT,
            shared_down=_OUTPUT,
        ),
    )
)
