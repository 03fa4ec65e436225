"""The decoder-only transformer that Llama and its relatives share: pre-norm blocks of attention and
SwiGLU.

The subclasses, one file per ``model_type``, say in what they differ; the differences themselves are
fields of ``ModelConfig``. Inference only: plain tensors, no ``nn.Module``, no autograd.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from twostroke.kernels.library import GROUP, Library, load_library
from twostroke.layers.activation import silu_mul
from twostroke.layers.attention.base import Attention
from twostroke.layers.attention.compiled import CompiledAttention
from twostroke.layers.compiled_pass import CompiledPass, LayerParts
from twostroke.layers.linear import Linear, PackedLinear, TorchLinear, make_linear
from twostroke.layers.norm import RMSNorm
from twostroke.layers.packing import rows_of
from twostroke.layers.rotary import RotaryTable, Rotation
from twostroke.model_spec.model_config import ModelConfig
from twostroke.observability.profile import GEMM, LAYERS, Profiler


@dataclass(frozen=True, slots=True)
class Parameter:
    """One tensor of the model and the checkpoint tensors that make it up, stacked along the first
    dimension.
    """

    name: str
    parts: tuple[tuple[str, tuple[int, ...]], ...]

    @property
    def shape(self) -> tuple[int, ...]:
        rows = sum(shape[0] for _, shape in self.parts)
        return (rows, *self.parts[0][1][1:])


class ParameterSource(Protocol):
    """Where a model takes its parameters from, each once; a dictionary of tensors is one."""

    def __contains__(self, name: str) -> bool: ...

    def pop(self, name: str) -> Tensor: ...


class Decoder:
    """A decoder-only language model.

    Args:
        config: Its architecture.
        parameters: The tensors that ``parameters_of(config)`` lists, all of one dtype and on one
            device. They are taken out one by one, since a layer may keep another form of its
            weight, and two would not fit.
        max_length: Positions lie in ``[0, max_length)``.
        quantization: ``int8`` or ``int4`` rounds the weights of linear layers; bfloat16 on a CPU
            only.
    """

    model_type = ""

    def __init__(
        self,
        config: ModelConfig,
        parameters: ParameterSource,
        max_length: int,
        quantization: str | None = None,
    ) -> None:
        self.config = config
        embedding = parameters.pop("embed")  # [vocab, hidden]
        self.device, self.dtype = embedding.device, embedding.dtype
        kernels = load_library() if _has_kernels(embedding) else None
        head = embedding if config.tie_word_embeddings else parameters.pop("head")
        self._head = make_linear(head, None, quantization, kernels)
        # Tied and packed, one copy serves both.
        shared = config.tie_word_embeddings and _format(self._head) == "bfloat16"
        self._embedding: Tensor | None = None if shared else embedding
        self._norm = RMSNorm(parameters.pop("norm"), config.rms_norm_eps, kernels)
        self._layers = [
            DecoderLayer(index, config, parameters, quantization, kernels)
            for index in range(config.num_layers)
        ]
        self._rotary = RotaryTable(config.rope, config.head_dim, max_length, self.device, kernels)
        if quantization is not None:
            linears = [self._head, *(linear for layer in self._layers for linear in layer.linears)]
            _warn_if_exact(linears, quantization)
        parts = [layer.compiled_parts() for layer in self._layers]
        self.compiled_pass = (
            CompiledPass([part for part in parts if part], self._rotary, kernels)
            if kernels and all(parts)
            else None
        )

    @property
    def weight_bytes(self) -> int:
        """Bytes of the matrices as they are kept; norms and biases are too small to count."""
        own_head = not (self.config.tie_word_embeddings and isinstance(self._head, TorchLinear))
        ends = (self._head.nbytes if own_head else 0) + (
            0 if self._embedding is None else self._embedding.nbytes
        )
        return ends + sum(layer.weight_bytes for layer in self._layers)

    def forward(
        self, token_ids: Tensor, positions: Tensor, attention: Attention, rows: Tensor | None = None
    ) -> Tensor:
        """Run ``token_ids`` [tokens] at ``positions`` [tokens] (int64); returns normed hidden
        states [rows, hidden].

        Tokens of many requests may be mixed; only ``attention`` knows which belong together.

        Args:
            rows: Which tokens' states are wanted, int64 in rising order, by default all. What the
                last layer does after its attention is spared for the others: their keys and values
                are all that is read of them.
        """
        x = self._embed(token_ids)  # [tokens, hidden]
        if self.compiled_pass is not None and isinstance(attention, CompiledAttention):
            return self._norm(self.compiled_pass(x, positions, attention, rows))
        rotation = self._rotary.rotation(positions)
        for layer in self._layers[:-1]:
            x = layer(x, rotation, attention)
        return self._norm(self._layers[-1](x, rotation, attention, rows))

    def _embed(self, token_ids: Tensor) -> Tensor:
        if self._embedding is not None:
            return F.embedding(token_ids, self._embedding)
        assert isinstance(self._head, PackedLinear)
        return rows_of(self._head.packed, token_ids)

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores of every token of the vocabulary: ``[rows, hidden]`` to float32 ``[rows,
        vocab]``.
        """
        return self._head.wide(hidden)

    def instrument(self, profiler: Profiler) -> None:
        """Put timed versions in the places of the components, for good."""
        profiler.replace(self, "forward", LAYERS)
        profiler.replace(self, "logits", GEMM)
        if self.compiled_pass is not None:
            self.compiled_pass.instrument(profiler)
        profiler.replace_all(self._layers, ["_qkv", "_output", "_gate_up", "_down"], GEMM)

    @classmethod
    def parameters_of(cls, config: ModelConfig) -> list[Parameter]:
        """What to load: fused parameters in terms of the names and shapes in a Hugging Face
        checkpoint.
        """
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

    def __init__(
        self,
        index: int,
        config: ModelConfig,
        parameters: ParameterSource,
        quantization: str | None,
        kernels: Library | None,
    ) -> None:
        def linear(name: str) -> Linear:
            weight = parameters.pop(f"{index}.{name}.weight")
            bias = (
                parameters.pop(f"{index}.{name}.bias")
                if f"{index}.{name}.bias" in parameters
                else None
            )
            return make_linear(weight, bias, quantization, kernels)

        def norm(name: str) -> RMSNorm:
            return RMSNorm(parameters.pop(f"{index}.{name}"), config.rms_norm_eps, kernels)

        self._index = index
        self._kernels = kernels
        self._heads, self._kv_heads = config.num_heads, config.num_kv_heads
        self._head_dim = config.head_dim
        self._input_norm = norm("input_norm")
        self._qkv, self._output = linear("qkv"), linear("output")
        self._mlp_norm = norm("mlp_norm")
        self._gate_up, self._down = linear("gate_up"), linear("down")
        self._qk_norm: RMSNorm | None = None
        if config.qk_norm:
            # One row per head, so that queries and keys are normalized, and later rotated, in one
            # go.
            q_row, k_row = (
                parameters.pop(f"{index}.q_norm"),
                parameters.pop(f"{index}.k_norm"),
            )  # [head_dim]
            rows = torch.cat((q_row.expand(self._heads, -1), k_row.expand(self._kv_heads, -1)))
            self._qk_norm = RMSNorm(rows, config.rms_norm_eps)

    @property
    def weight_bytes(self) -> int:
        return sum(linear.nbytes for linear in self.linears)

    @property
    def linears(self) -> tuple[Linear, ...]:
        return self._qkv, self._output, self._gate_up, self._down

    def compiled_parts(self) -> LayerParts | None:
        """The layer as the compiled kernels take it; ``None`` if some part of it is PyTorch's."""
        packed = [linear for linear in self.linears if isinstance(linear, PackedLinear)]
        if len(packed) < len(self.linears):
            return None
        return LayerParts(self._input_norm, self._mlp_norm, self._qk_norm, *packed)

    def __call__(
        self, x: Tensor, rotation: Rotation, attention: Attention, rows: Tensor | None = None
    ) -> Tensor:
        """Map ``[tokens, hidden]`` to ``[rows, hidden]``, by default all rows."""
        attended = self._attend(
            self._input_norm(x), rotation, attention
        )  # [tokens, heads * head_dim]
        if rows is not None:
            attended, x = attended[rows], x[rows]
        x = self._output(attended, residual=x)
        gate_up = self._gate_up(self._mlp_norm(x))  # [tokens, 2 * intermediate]
        return self._down(silu_mul(gate_up, self._kernels), residual=x)

    def _attend(self, x: Tensor, rotation: Rotation, attention: Attention) -> Tensor:
        tokens, rotated = x.shape[0], self._heads + self._kv_heads
        heads = self._qkv(x).view(
            tokens, rotated + self._kv_heads, self._head_dim
        )  # queries, keys, values
        qk = heads[:, :rotated]
        if self._qk_norm is not None:
            qk = self._qk_norm(qk)
        qk = rotation.apply(qk)
        out = attention(self._index, qk[:, : self._heads], qk[:, self._heads :], heads[:, rotated:])
        return out.reshape(tokens, -1)


def _has_kernels(weight: Tensor) -> bool:
    return weight.device.type == "cpu" and weight.dtype == torch.bfloat16


def _format(linear: Linear) -> str | None:
    return linear.packed.format if isinstance(linear, PackedLinear) else None


def _warn_if_exact(linears: list[Linear], quantization: str) -> None:
    exact = sum(_format(linear) != quantization for linear in linears)
    if exact:
        warnings.warn(
            f"{exact} of {len(linears)} linear layers keep their precision: --quantization"
            f" {quantization} needs inputs that are a multiple of {GROUP}",
            stacklevel=3,
        )


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
