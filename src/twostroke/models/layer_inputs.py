"""Embeddings that a model has for each of its layers (Gemma 3n, Gemma 4), in one table."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from twostroke.kernels.library import Library
from twostroke.layers.linear import make_linear
from twostroke.layers.norm import RMSNorm
from twostroke.model_spec.spec import ModelSpec
from twostroke.models.parameters import Parameter, ParameterSource


class LayerInputs:
    """What each layer gets of each token besides the hidden state.

    ``(norm(projection(x) / sqrt(hidden)) + sqrt(size) * table[token]) / sqrt(2)`` for the size of
    one layer's part of a row.
    """

    def __init__(
        self,
        spec: ModelSpec,
        parameters: ParameterSource,
        quantization: str | None,
        kernels: Library | None,
    ) -> None:
        self._layers = spec.num_layers
        self._table = parameters.pop("layer_table")  # [vocab, layers * size]
        self.projection = make_linear(
            parameters.pop("layer_projection"), None, quantization, kernels
        )
        self._norm = RMSNorm(parameters.pop("layer_norm"), spec.norm_eps)
        size = self._table.shape[1] // self._layers
        # Rounded as the embeddings are, as in transformers.
        self._scale = torch.tensor(size**0.5).to(self._table)
        self._hidden_scale = spec.hidden_size**-0.5

    def __call__(self, token_ids: Tensor, x: Tensor) -> Tensor:
        """``[tokens, layers, size]`` of ``token_ids`` and their embeddings ``[tokens, hidden]``."""
        shape = len(x), self._layers, -1
        context = self._norm((self.projection(x) * self._hidden_scale).view(shape))
        own = F.embedding(token_ids, self._table).view(shape) * self._scale
        return torch.mul(context + own, 2.0**-0.5)

    @property
    def nbytes(self) -> int:
        return self._table.nbytes + self.projection.nbytes


def layer_input_parameters(spec: ModelSpec, prefix: str) -> list[Parameter]:
    """What ``LayerInputs`` consists of; ``prefix`` is that of a checkpoint's names."""
    rows = spec.layer_inputs
    if not rows:
        return []
    table = (f"{prefix}embed_tokens_per_layer.weight", (spec.layer_vocab, rows))
    projection = (f"{prefix}per_layer_model_projection.weight", (rows, spec.hidden_size))
    norm = f"{prefix}per_layer_projection_norm"
    return [
        Parameter("layer_table", (table,)),
        Parameter("layer_projection", (projection,)),
        Parameter("layer_norm", ((f"{norm}.weight", (rows // spec.num_layers,)),)),
    ]
