"""The seam between the executor and what computes a pass."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from twostroke.kernels.library import Library
from twostroke.layers.attention.base import Attention
from twostroke.layers.compiled.decoder_pass import CompiledPass
from twostroke.layers.recurrent_state import NO_LAYER_STATES, LayerStates, StateShape
from twostroke.model_spec.spec import ModelSpec


class LanguageModel(Protocol):
    """A decoder: ``models/decoder.py``, or one of transformers (``models/foreign/``).

    It owns its weights and nothing that lasts between two passes; only ``attention`` and ``states``
    know which tokens belong together.

    Attributes:
        spec: What it consists of: of each layer that attends at least the attention.
        kernels: The compiled kernels, where it computes with them.
        compiled_pass: All its layers in one call of them, where they can run them.
    """

    spec: ModelSpec
    device: torch.device
    dtype: torch.dtype
    kernels: Library | None
    compiled_pass: CompiledPass | None

    @property
    def weight_bytes(self) -> int: ...

    @property
    def asks_host(self) -> bool:
        """Whether a pass waits for numbers to know what to compute: it cannot be recorded then."""
        ...

    @property
    def state_shapes(self) -> list[tuple[StateShape, ...]]:
        """The recurrent state of each layer: what a request keeps of it besides keys and values."""
        ...

    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        attention: Attention,
        rows: Tensor | None = None,
        states: LayerStates = NO_LAYER_STATES,
    ) -> Tensor:
        """Run ``token_ids`` [tokens] at ``positions`` [tokens] (int64).

        Tokens of many requests may be mixed.

        Args:
            rows: Which tokens' states are wanted, int64 in rising order, by default all.

        Returns:
            Normed hidden states ``[rows, hidden]``.
        """
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores of every token: ``[rows, hidden]`` to float32 ``[rows, vocab]``."""
        ...
