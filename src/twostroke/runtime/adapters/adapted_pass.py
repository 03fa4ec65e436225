"""A model whose passes have additions to some of their rows."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import ExitStack

from torch import Tensor

from twostroke.kernels.library import Library
from twostroke.layers.attention.base import Attention
from twostroke.layers.compiled.decoder_pass import CompiledAdditions, CompiledPass
from twostroke.layers.low_rank import Additions, PassAdditions
from twostroke.layers.recurrent_state import NO_LAYER_STATES, LayerStates, StateShape
from twostroke.model_spec.spec import ModelSpec
from twostroke.models.decoder import Decoder


class AdaptedPass:
    """A ``LanguageModel`` for passes over the tokens that it was made for.

    In the compiled pass through all layers or layer by layer: the same kernels compute with the
    same roundings either way.

    Args:
        model: Its linear layers add what ``passes`` says.
        additions: What each adapter adds.
        owners: int64 ``[tokens]`` on the model's device: each token's index in ``additions``, or
            -1.
        compiled: These additions for the compiled pass; ``None``: layers are called one by one.
    """

    compiled_pass: CompiledPass | None = None

    asks_host = True  # as far as one knows

    def __init__(
        self,
        model: Decoder,
        passes: PassAdditions,
        additions: Sequence[Additions],
        owners: Tensor,
        compiled: CompiledAdditions | None = None,
    ) -> None:
        self._model = model
        if compiled is None:
            self._model = copy.copy(model)
            self._model.compiled_pass = None
        self._compiled = compiled
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
        with ExitStack() as adding:
            adding.enter_context(self._passes.during(self._owners, self._additions, rows))
            if self._compiled is not None and (layers := self._model.compiled_pass) is not None:
                adding.enter_context(layers.adding(self._compiled, self._owners))
            return self._model.forward(token_ids, positions, attention, rows, states)

    def logits(self, hidden: Tensor) -> Tensor:
        return self._model.logits(hidden)
