"""A decoder of transformers as the executor runs one: all tokens of a step in one row."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from twostroke.kernels.library import Library
from twostroke.layers.attention.base import Attention
from twostroke.layers.compiled.decoder_pass import CompiledPass
from twostroke.layers.recurrent_state import NO_LAYER_STATES, LayerStates, StateShape
from twostroke.model_spec.spec import ModelSpec
from twostroke.models.foreign.interface import CURRENT, Attend, CallForm, CurrentPass
from twostroke.observability.profile import GEMM, LAYERS, NO_PROFILE, Profiler


class ForeignBody:
    """The two halves of a model of transformers: up to the last hidden state, and its logits.

    Args:
        model: A causal language model whose attention is ``interface.NAME``.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self._current = CurrentPass()
        for module in model.modules():
            setattr(module, CURRENT, self._current)
        name = model.base_model_prefix
        name = name if hasattr(model, name) else "model"
        self._base = getattr(model, name)
        # The same model but for its layers: what it makes of their result is the logits.
        self._given = _Given()
        self._head = copy.copy(model)
        self._head._modules = {**model._modules, name: self._given}

    def hidden(self, token_ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """``[tokens, hidden]`` of ``token_ids`` [tokens] at ``positions`` [tokens]."""
        with self._current.during(attend):
            made = self._base(
                input_ids=token_ids[None], position_ids=positions[None], use_cache=False
            )
        hidden: Tensor = made.last_hidden_state[0]
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """``[rows, hidden]`` to ``[rows, vocab]``."""
        self._given.hidden = hidden[None]
        try:
            logits: Tensor = self._head(inputs_embeds=hidden[None], use_cache=False).logits[0]
            return logits
        finally:
            self._given.hidden = None

    def whole_logits(self, token_ids: Tensor, attend: Attend) -> Tensor:
        """Logits by the model's own forward, which runs both halves and chooses the positions."""
        with self._current.during(attend):
            logits: Tensor = self.model(input_ids=token_ids[None], use_cache=False).logits[0]
        return logits


class ForeignDecoder:
    """See ``LanguageModel``."""

    kernels: Library | None = None
    compiled_pass: CompiledPass | None = None

    asks_host = True  # as far as one knows

    def __init__(
        self,
        body: ForeignBody,
        spec: ModelSpec,
        device: torch.device,
        dtype: torch.dtype,
        profiler: Profiler = NO_PROFILE,
    ) -> None:
        self._body, self._profiler = body, profiler
        self.spec, self.device, self.dtype = spec, device, dtype

    @property
    def weight_bytes(self) -> int:
        return sum(each.nbytes for each in self._body.model.parameters())

    @property
    def state_shapes(self) -> list[tuple[StateShape, ...]]:
        return [()] * self.spec.num_layers

    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        attention: Attention,
        rows: Tensor | None = None,
        states: LayerStates = NO_LAYER_STATES,
    ) -> Tensor:
        def attend(
            index: int, form: CallForm, query: Tensor, key: Tensor, value: Tensor, sinks: Any
        ) -> Tensor:
            return attention(index, query, key, value, None if sinks is None else sinks.float())

        with self._profiler.measure(LAYERS):
            hidden = self._body.hidden(token_ids, positions, attend)
        return hidden if rows is None else hidden[rows]

    def logits(self, hidden: Tensor) -> Tensor:
        with self._profiler.measure(GEMM):
            return self._body.logits(hidden).float()


class _Given(nn.Module):
    """Stands where a model has its layers, and gives what they made."""

    hidden: Tensor | None = None

    @property
    def decoder(self) -> _Given:
        """Some models call the layers within this part of their base."""
        return self

    def forward(self, *arguments: Any, **options: Any) -> Any:
        return _Result(self.hidden)


class _Result:
    """What the layers' output is read for, by name or as the first of several; else ``None``."""

    def __init__(self, hidden: Tensor | None) -> None:
        self.last_hidden_state = hidden

    def __getattr__(self, name: str) -> None:
        return None

    def __getitem__(self, index: int) -> Tensor | None:
        return (self.last_hidden_state,)[index]
