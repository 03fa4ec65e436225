"""Qwen3 (dense): Llama's tensors, and norms of each query and key head before the rotation."""

from __future__ import annotations

from dataclasses import replace

from twostroke.models.branches.attention import AttentionKind
from twostroke.models.llama import FAMILY as LLAMA

_ATTENTION = AttentionKind(query_norm="self_attn.q_norm", key_norm="self_attn.k_norm")
FAMILY = replace(LLAMA, branches=(_ATTENTION, *LLAMA.branches[1:]))
