"""Qwen3-Next: Qwen3.5's layers, with the inputs of linear attention in two tensors."""

from __future__ import annotations

from dataclasses import replace

from twostroke.models.branches.gated_delta import GatedDeltaKind
from twostroke.models.families.qwen3_5 import FAMILY as QWEN3_5

FAMILY = replace(QWEN3_5, branches=(GatedDeltaKind(fused=True), *QWEN3_5.branches[1:]))
