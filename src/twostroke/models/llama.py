"""Llama 1 to 3 and the many models that copy it: no biases unless the config says so, llama3 rope
scaling.
"""

from __future__ import annotations

from twostroke.models.decoder import Decoder


class Llama(Decoder):
    model_type = "llama"
