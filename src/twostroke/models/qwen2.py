"""Qwen2 and Qwen2.5: tensors are named as Llama's.

The spec always has biases on query, key and value, and a window in upper layers only, if at all.
"""

from __future__ import annotations

from twostroke.models.llama import FAMILY as LLAMA

FAMILY = LLAMA
