"""A model whose passes have additions to some of their rows."""

from __future__ import annotations

import copy
from collections.abc import Sequence

from torch import Tensor

from twostroke.kernels.library import Library
from twostroke.layers.attention.base import Attention
from twostroke.layers.compiled_pass import CompiledPass
from twostroke.layers.low_rank import Additions, PassAdditions
from twostroke.layers.recurrent_state import NO_LAYER_STATES, LayerStates, StateShape
from twostroke.model_spec.spec import ModelSpec
from twostroke.models.decoder import Decoder


class AdaptedPass:
    """A ``LanguageModel`` for passes over the tokens that it was made for.

    Its layers are called one by one: the compiled pass through all of them knows no additions. The
    same kernels compute with the same roundings either way.

    Args:
        model: Its linear layers add what ``passes`` says.
        additions: What each adapter adds.
        owners: int64 ``[tokens]`` on the model's device: each token's index in ``additions``, or
            -1.
    """

    compiled_pass: CompiledPass | None = None

    def __init__(
        self, model: Decoder, passes: PassAdditions, additions: Sequence[Additions], owners: Tensor
    ) -> None:
        self._model = copy.copy(model)
        self._model.compiled_pass = None
        self._passes, self._additions, self._owners = passes, additions, owners
        self.spec: ModelSpec = model.spec
        self.device, self.dtype = model.device, model.dtype
        self.kernels: Library | None = model.kernels

    @property
    def weight_bytes(self) -> int:
        return self._model.weight_bytes

    @property
    def state_shapes(self) -> list[tuple[StateShape, ...]]:
        return self._model.state_shapes

    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        attention: Attention,
        rows: Tensor | None = None,
        states: LayerStates = NO_LAYER_STATES,
    ) -> Tensor:
        """See ``LanguageModel``."""
        with self._passes.during(self._owners, self._additions, rows):
            return self._model.forward(token_ids, positions, attention, rows, states)

    def logits(self, hidden: Tensor) -> Tensor:
        return self._model.logits(hidden)
