"""Mistral: tensors are named as Llama's; the spec has a window in every layer, or in none."""

from __future__ import annotations

from twostroke.models.llama import FAMILY as LLAMA

FAMILY = LLAMA
