"""The decoder-only transformer that Llama and its relatives share: pre-norm blocks of attention and SwiGLU.

The subclasses, one file per ``model_type``, say in what they differ; the differences themselves are fields of
``ModelConfig``. Inference only: plain tensors, no ``nn.Module``, no autograd.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from twostroke.layers.attention.base import Attention
from twostroke.layers.linear import Linear
from twostroke.layers.norm import RMSNorm
from twostroke.layers.rotary import RotaryTable, Rotation
from twostroke.model_config import ModelConfig


@dataclass(frozen=True, slots=True)
class Parameter:
    """One tensor of the model and the checkpoint tensors that make it up, stacked along the first dimension."""

    name: str
    parts: tuple[tuple[str, tuple[int, ...]], ...]

    @property
    def shape(self) -> tuple[int, ...]:
        rows = sum(shape[0] for _, shape in self.parts)
        return (rows, *self.parts[0][1][1:])


class Decoder:
    """A decoder-only language model.

    Args:
        config: Its architecture.
        parameters: The tensors that ``parameters_of(config)`` lists, all of one dtype and on one device.
        max_length: Positions lie in ``[0, max_length)``.
    """

    model_type = ""

    def __init__(self, config: ModelConfig, parameters: Mapping[str, Tensor], max_length: int) -> None:
        self.config = config
        self._embedding = parameters["embed"]  # [vocab, hidden]
        head = self._embedding if config.tie_word_embeddings else parameters["head"]
        self._head = Linear(head)
        self._norm = RMSNorm(parameters["norm"], config.rms_norm_eps)
        self._layers = [DecoderLayer(index, config, parameters) for index in range(config.num_layers)]
        self._rotary = RotaryTable(config.rope, config.head_dim, max_length, self.device)

    @property
    def device(self) -> torch.device:
        return self._embedding.device

    @property
    def dtype(self) -> torch.dtype:
        return self._embedding.dtype

    def forward(self, token_ids: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        """Run ``token_ids`` [tokens] at ``positions`` [tokens] (int64); returns normed hidden states [tokens, hidden].

        Tokens of many requests may be mixed; only ``attention`` knows which belong together.
        """
        rotation = self._rotary.rotation(positions)
        x = F.embedding(token_ids, self._embedding)  # [tokens, hidden]
        for layer in self._layers:
            x = layer(x, rotation, attention)
        return self._norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores of every token of the vocabulary: ``[rows, hidden]`` to float32 ``[rows, vocab]``."""
        return self._head(hidden).float()

    @classmethod
    def parameters_of(cls, config: ModelConfig) -> list[Parameter]:
        """What to load: fused parameters in terms of the names and shapes in a Hugging Face checkpoint."""
        embed_shape = (config.vocab_size, config.hidden_size)
        found = [Parameter("embed", (("model.embed_tokens.weight", embed_shape),))]
        for layer in range(config.num_layers):
            found += _layer_parameters(config, layer)
        found.append(Parameter("norm", (("model.norm.weight", (config.hidden_size,)),)))
        if not config.tie_word_embeddings:
            found.append(Parameter("head", (("lm_head.weight", embed_shape),)))
        return found


class DecoderLayer:
    """``x + attention(norm(x))``, then ``x + mlp(norm(x))``."""

    def __init__(self, index: int, config: ModelConfig, parameters: Mapping[str, Tensor]) -> None:
        def linear(name: str) -> Linear:
            return Linear(parameters[f"{index}.{name}.weight"], parameters.get(f"{index}.{name}.bias"))

        self._index = index
        self._heads, self._kv_heads = config.num_heads, config.num_kv_heads
        self._head_dim = config.head_dim
        self._input_norm = RMSNorm(parameters[f"{index}.input_norm"], config.rms_norm_eps)
        self._qkv, self._output = linear("qkv"), linear("output")
        self._mlp_norm = RMSNorm(parameters[f"{index}.mlp_norm"], config.rms_norm_eps)
        self._gate_up, self._down = linear("gate_up"), linear("down")
        self._qk_norm: RMSNorm | None = None
        if config.qk_norm:
            # One row per head, so that queries and keys are normalized, and later rotated, in one go.
            q_row, k_row = parameters[f"{index}.q_norm"], parameters[f"{index}.k_norm"]  # [head_dim]
            rows = torch.cat((q_row.expand(self._heads, -1), k_row.expand(self._kv_heads, -1)))
            self._qk_norm = RMSNorm(rows, config.rms_norm_eps)

    def __call__(self, x: Tensor, rotation: Rotation, attention: Attention) -> Tensor:
        x = x + self._attend(self._input_norm(x), rotation, attention)
        gate, up = self._gate_up(self._mlp_norm(x)).chunk(2, dim=-1)  # [tokens, intermediate]
        return x + self._down(F.silu(gate) * up)

    def _attend(self, x: Tensor, rotation: Rotation, attention: Attention) -> Tensor:
        tokens, rotated = x.shape[0], self._heads + self._kv_heads
        heads = self._qkv(x).view(tokens, rotated + self._kv_heads, self._head_dim)  # queries, keys, values
        qk = heads[:, :rotated]
        if self._qk_norm is not None:
            qk = self._qk_norm(qk)
        qk = rotation.apply(qk)
        out = attention(self._index, qk[:, : self._heads], qk[:, self._heads :], heads[:, rotated:])
        return self._output(out.reshape(tokens, -1))


def _layer_parameters(config: ModelConfig, layer: int) -> list[Parameter]:
    prefix = f"model.layers.{layer}."
    hidden, ffn = config.hidden_size, config.intermediate_size
    query, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    found = []

    def linear(name: str, parts: list[tuple[str, int]], inputs: int, bias: bool) -> None:
        weights = tuple((f"{prefix}{part}.weight", (rows, inputs)) for part, rows in parts)
        found.append(Parameter(f"{layer}.{name}.weight", weights))
        if bias:
            biases = tuple((f"{prefix}{part}.bias", (rows,)) for part, rows in parts)
            found.append(Parameter(f"{layer}.{name}.bias", biases))

    def vector(name: str, part: str, size: int) -> None:
        found.append(Parameter(f"{layer}.{name}", ((f"{prefix}{part}.weight", (size,)),)))

    vector("input_norm", "input_layernorm", hidden)
    qkv = [("self_attn.q_proj", query), ("self_attn.k_proj", kv), ("self_attn.v_proj", kv)]
    linear("qkv", qkv, hidden, config.qkv_bias)
    if config.qk_norm:
        vector("q_norm", "self_attn.q_norm", config.head_dim)
        vector("k_norm", "self_attn.k_norm", config.head_dim)
    linear("output", [("self_attn.o_proj", hidden)], query, config.output_bias)
    vector("mlp_norm", "post_attention_layernorm", hidden)
    linear("gate_up", [("mlp.gate_proj", ffn), ("mlp.up_proj", ffn)], hidden, config.mlp_bias)
    linear("down", [("mlp.down_proj", hidden)], ffn, config.mlp_bias)
    return found
