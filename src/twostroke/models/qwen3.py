"""Qwen3 (dense): no qkv biases; query and key heads are RMS-normalized before the rotation; own
head_dim.
"""

from __future__ import annotations

from twostroke.models.decoder import Decoder


class Qwen3(Decoder):
    model_type = "qwen3"
