"""Qwen2 and Qwen2.5: Llama with biases on query, key and value; a sliding window only in upper
layers, if at all.
"""

from __future__ import annotations

from twostroke.models.decoder import Decoder


class Qwen2(Decoder):
    model_type = "qwen2"
