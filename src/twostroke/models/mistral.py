"""Mistral: Llama with a sliding window in every layer (or none where the config says null)."""

from __future__ import annotations

from twostroke.models.decoder import Decoder


class Mistral(Decoder):
    model_type = "mistral"
