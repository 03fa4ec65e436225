"""Llama and what is named as it: Mistral, Qwen2 and 3, Granite 3, SmolLM3.

How they differ, the spec says: biases, norms of heads, windows, multipliers, layers that do not
rotate.
"""

from __future__ import annotations

from twostroke.models.branches.attention import AttentionKind
from twostroke.models.branches.mlp import MlpKind
from twostroke.models.family import DecoderFamily

FAMILY = DecoderFamily(branches=(AttentionKind(), MlpKind()))
