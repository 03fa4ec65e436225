"""Encoders of the BERT family: each token sees its whole prompt, and nothing is cached."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from twostroke.model_spec.vectors.encoder_spec import ENCODER_TYPES, EncoderSpec
from twostroke.models.parameters import Parameter, ParameterSource, linear_parameters

_TABLES = ("word_embeddings", "position_embeddings", "token_type_embeddings")


def encoder_parameters(spec: EncoderSpec, *, prefixed: bool) -> list[Parameter]:
    """What to load, in terms of a checkpoint's names.

    Args:
        prefixed: Whether the names begin with the model's, as in checkpoints with a head.
    """
    prefix, hidden = ENCODER_TYPES[spec.model_type] if prefixed else "", spec.hidden_size
    rows = (spec.vocab_size, spec.num_positions, spec.num_types)
    parameters = [
        Parameter(name, ((f"{prefix}embeddings.{name}.weight", (count, hidden)),))
        for name, count in zip(_TABLES, rows, strict=True)
    ]
    parameters += _norm("norm", f"{prefix}embeddings.LayerNorm", hidden)
    for index in range(spec.num_layers):
        layer = f"{prefix}encoder.layer.{index}."
        inner = f"{layer}attention.self."
        parts = [(inner + name, hidden) for name in ("query", "key", "value")]
        parameters += linear_parameters(f"{index}.qkv", parts, hidden, bias=True)
        for name, place, outputs, inputs in (
            ("attended", "attention.output.dense", hidden, hidden),
            ("up", "intermediate.dense", spec.intermediate_size, hidden),
            ("down", "output.dense", hidden, spec.intermediate_size),
        ):
            parts = [(layer + place, outputs)]
            parameters += linear_parameters(f"{index}.{name}", parts, inputs, bias=True)
        parameters += _norm(f"{index}.norm1", f"{layer}attention.output.LayerNorm", hidden)
        parameters += _norm(f"{index}.norm2", f"{layer}output.LayerNorm", hidden)
    if spec.ranks:
        is_bert = spec.model_type == "bert"
        dense = f"{prefix}pooler.dense" if is_bert else "classifier.dense"
        out = "classifier" if is_bert else "classifier.out_proj"
        parameters += linear_parameters("score_dense", [(dense, hidden)], hidden, bias=True)
        parameters += linear_parameters("score_out", [(out, 1)], hidden, bias=True)
    return parameters


def is_needless(name: str) -> bool:
    """Whether a checkpoint's tensor belongs to what is not computed: other heads, old buffers."""
    bare = name.removeprefix("bert.").removeprefix("roberta.")
    return bare.startswith(("cls.", "lm_head.", "pooler.")) or bare == "embeddings.position_ids"


@dataclass(frozen=True, slots=True)
class EncoderBatch:
    """Prompts one after the other: prompt ``i`` has rows ``starts[i]`` up to ``starts[i + 1]``.

    Attributes:
        token_ids: ``[tokens]`` int64; ``positions`` and ``types`` the same.
    """

    token_ids: Tensor
    positions: Tensor
    types: Tensor
    starts: Sequence[int]


def make_batch(
    spec: EncoderSpec,
    prompts: Sequence[Sequence[int]],
    second_starts: Sequence[int | None],
    device: torch.device,
) -> EncoderBatch:
    """The tensors of prompts; ``second_starts`` says where the second texts of pairs begin."""
    token_ids: list[int] = []
    types: list[int] = []
    positions: list[int] = []
    starts = [0]
    for prompt, second in zip(prompts, second_starts, strict=True):
        token_ids += prompt
        boundary = len(prompt) if second is None or spec.num_types < 2 else second
        types += [0] * boundary + [1] * (len(prompt) - boundary)
        positions += _positions(spec, prompt)
        starts.append(len(token_ids))
    return EncoderBatch(
        torch.tensor(token_ids, device=device),
        torch.tensor(positions, device=device),
        torch.tensor(types, device=device),
        starts,
    )


class Encoder:
    """Embeddings, then layers of attention and an MLP, each added to its input and normalised."""

    def __init__(
        self, spec: EncoderSpec, parameters: ParameterSource, weight_bytes: int = 0
    ) -> None:
        self.spec = spec
        self.weight_bytes = weight_bytes
        self._tables = [parameters.pop(name) for name in _TABLES]
        self.device, self.dtype = self._tables[0].device, self._tables[0].dtype
        self._norm = _LayerNorm(parameters, "norm", spec.norm_eps)
        self._layers = [_Layer(spec, parameters, f"{i}.") for i in range(spec.num_layers)]
        self._score = (
            [_Linear(parameters, "score_dense"), _Linear(parameters, "score_out")]
            if spec.ranks
            else None
        )

    def forward(self, batch: EncoderBatch) -> Tensor:
        """The last layer's states ``[tokens, hidden]``."""
        words, positions, types = self._tables
        x = F.embedding(batch.token_ids, words)  # [tokens, hidden]
        x = x + F.embedding(batch.positions, positions) + F.embedding(batch.types, types)
        x = self._norm(x)
        groups = _equal_lengths(batch, self.device)
        for layer in self._layers:
            x = layer(x, groups)
        return x

    def score(self, states: Tensor) -> Tensor:
        """Scores, float32 ``[rows]``, of pairs by their first states ``[rows, hidden]``."""
        assert self._score is not None  # as the spec says
        dense, out = self._score
        logits = out(torch.tanh(dense(states.to(self.dtype)))).float()[:, 0]
        return torch.sigmoid(logits) if self.spec.score_activation == "Sigmoid" else logits


@dataclass(frozen=True, slots=True)
class _Group:
    """Prompts of equal length: ``rows`` are their tokens, prompt by prompt."""

    rows: Tensor
    length: int


def _equal_lengths(batch: EncoderBatch, device: torch.device) -> list[_Group]:
    rows: defaultdict[int, list[int]] = defaultdict(list)
    for start, end in zip(batch.starts, batch.starts[1:]):
        rows[end - start] += range(start, end)
    return [_Group(torch.tensor(of, device=device), length) for length, of in rows.items()]


class _Layer:
    def __init__(self, spec: EncoderSpec, parameters: ParameterSource, prefix: str) -> None:
        self._heads, self._head_dim = spec.heads, spec.head_dim
        self._qkv = _Linear(parameters, prefix + "qkv")
        self._attended = _Linear(parameters, prefix + "attended")
        self._up, self._down = (
            _Linear(parameters, prefix + "up"),
            _Linear(parameters, prefix + "down"),
        )
        self._norm1 = _LayerNorm(parameters, prefix + "norm1", spec.norm_eps)
        self._norm2 = _LayerNorm(parameters, prefix + "norm2", spec.norm_eps)
        self._activation = spec.activation

    def __call__(self, x: Tensor, groups: Sequence[_Group]) -> Tensor:
        x = self._norm1(x + self._attended(self._attend(self._qkv(x), groups)))
        return self._norm2(x + self._down(self._activate(self._up(x))))

    def _attend(self, qkv: Tensor, groups: Sequence[_Group]) -> Tensor:
        out = qkv.new_empty(len(qkv), self._heads * self._head_dim)
        for group in groups:
            part = qkv[group.rows].view(-1, group.length, 3, self._heads, self._head_dim)
            query, key, value = part.permute(2, 0, 3, 1, 4)  # [prompts, heads, length, head_dim]
            attended = F.scaled_dot_product_attention(query, key, value)
            out[group.rows] = attended.transpose(1, 2).reshape(len(group.rows), -1)
        return out

    def _activate(self, x: Tensor) -> Tensor:
        if self._activation == "relu":
            return F.relu(x)
        return F.gelu(x, approximate="none" if self._activation == "gelu" else "tanh")


class _Linear:
    def __init__(self, parameters: ParameterSource, name: str) -> None:
        self._weight = parameters.pop(f"{name}.weight")
        self._bias = parameters.pop(f"{name}.bias")

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self._weight, self._bias)


class _LayerNorm:
    def __init__(self, parameters: ParameterSource, name: str, eps: float) -> None:
        self._weight = parameters.pop(f"{name}.weight")
        self._bias = parameters.pop(f"{name}.bias")
        self._eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self._weight.shape, self._weight, self._bias, self._eps)


def _positions(spec: EncoderSpec, prompt: Sequence[int]) -> Sequence[int]:
    """RoBERTa counts no padding tokens, also where a client sends them."""
    if not spec.first_position:
        return range(len(prompt))
    positions, position = [], spec.first_position
    for token in prompt:
        is_padding = token == spec.padding_id
        positions.append(spec.padding_id if is_padding else position)
        position += not is_padding
    return positions


def _norm(name: str, place: str, size: int) -> list[Parameter]:
    return [Parameter(f"{name}.{of}", ((f"{place}.{of}", (size,)),)) for of in ("weight", "bias")]
