"""Llama 1 to 3 and the many models that copy it.

Biases only where the config says so, llama3 rope scaling.
"""

from __future__ import annotations

from twostroke.models.branches.attention import AttentionKind
from twostroke.models.branches.mlp import MlpKind
from twostroke.models.family import DecoderFamily

FAMILY = DecoderFamily(branches=(AttentionKind(), MlpKind()))
