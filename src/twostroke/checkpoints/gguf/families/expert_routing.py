"""How tokens find their experts where files say it: DeepSeek's models, GLM-4.5, Nemotron-H."""

from __future__ import annotations

from typing import Any

from twostroke.checkpoints.gguf.metadata import Metadata

SOFTMAX, SIGMOID = 1, 2  # of ``expert_gating_func``


def read_gating(metadata: Metadata, name: str, default: int) -> int:
    """What turns a router's outputs into weights; ``name`` is that of the architecture.

    Raises:
        ModelLoadError: Another function than those two.
    """
    gating = metadata.integer(f"{name}.expert_gating_func", default)
    if gating not in (SOFTMAX, SIGMOID):
        raise metadata.refusal(f"{name}.expert_gating_func", f"is {gating}: not supported")
    return gating


def read_weighting(metadata: Metadata, name: str) -> dict[str, Any]:
    """What becomes of the weights of those chosen, and in which groups they are chosen."""
    return {
        "norm_topk_prob": metadata.flag(f"{name}.expert_weights_norm", False),
        # Files say 0 where nothing is scaled, or where there is one group.
        "routed_scaling_factor": metadata.number(f"{name}.expert_weights_scale", 1.0) or 1.0,
        "n_group": metadata.integer(f"{name}.expert_group_count", 1) or 1,
        "topk_group": metadata.integer(f"{name}.expert_group_used_count", 1) or 1,
    }


def read_sigmoid_routing(metadata: Metadata, name: str) -> dict[str, Any]:
    """Both, as DeepSeek-V3 has them. Raises ModelLoadError for a file that says otherwise."""
    if read_gating(metadata, name, SIGMOID) != SIGMOID:
        raise metadata.refusal(f"{name}.expert_gating_func", "must be 2 in this architecture")
    return read_weighting(metadata, name)
