"""Softmax attention over grouped heads, with rotary positions."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from twostroke.layers.compiled_pass import CompiledBranch
from twostroke.layers.linear import Linear
from twostroke.layers.norm import RMSNorm
from twostroke.layers.recurrent_state import StateShape
from twostroke.model_spec.layer_specs import AttentionSpec, LayerSpec
from twostroke.models.branches.base import BranchParts, PassInputs
from twostroke.models.parameters import Parameter, linear_parameters, vector_parameter
from twostroke.observability.profile import ATTENTION, GEMM


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionKind:
    """Names in checkpoints, see ``BranchKind``. Which biases and norms there are, the spec says."""

    norm: str = "input_layernorm"
    query: str = "self_attn.q_proj"
    key: str = "self_attn.k_proj"
    value: str = "self_attn.v_proj"
    output: str = "self_attn.o_proj"
    query_norm: str = ""
    key_norm: str = ""

    def is_in(self, layer: LayerSpec) -> bool:
        return layer.attention is not None

    def parameters(self, layer: LayerSpec, hidden: int) -> list[Parameter]:
        spec = _spec_of(layer)
        query, kv = spec.heads * spec.key_dim, spec.kv_heads * spec.key_dim
        parameters = [vector_parameter("input_norm", self.norm, hidden)]
        outputs = [(self.query, query), (self.key, kv), (self.value, kv)]
        parameters += linear_parameters("qkv", outputs, hidden, spec.qkv_bias)
        if spec.qk_norm:
            parameters.append(vector_parameter("q_norm", self.query_norm, spec.key_dim))
            parameters.append(vector_parameter("k_norm", self.key_norm, spec.key_dim))
        output = [(self.output, hidden)]
        return parameters + linear_parameters("output", output, query, spec.output_bias)

    def build(self, layer: LayerSpec, parts: BranchParts) -> AttentionBranch:
        return AttentionBranch(_spec_of(layer), parts)


class AttentionBranch:
    """``x + output(attention(qkv(norm(x))))``, see ``Branch``."""

    mixes_tokens = True
    state: tuple[StateShape, ...] = ()

    def __init__(self, spec: AttentionSpec, parts: BranchParts) -> None:
        self._index = parts.index
        self._profiler = parts.profiler
        self._heads, self._kv_heads, self._head_dim = spec.heads, spec.kv_heads, spec.key_dim
        self._norm = parts.norm("input_norm")
        self._qkv, self._output = parts.linear("qkv"), parts.linear("output")
        self._qk_norm = _qk_norm(spec, parts) if spec.qk_norm else None

    def __call__(self, x: Tensor, step: PassInputs, rows: Tensor | None) -> Tensor:
        attended = self._attend(self._norm(x), step)  # [tokens, heads * head_dim]
        if rows is not None:
            attended, x = attended[rows], x[rows]
        with self._profiler.measure(GEMM):
            return self._output(attended, residual=x)

    @property
    def linears(self) -> tuple[Linear, ...]:
        return self._qkv, self._output

    def compiled(self) -> CompiledBranch | None:
        qkv, output = self._qkv.kernel_call, self._output.kernel_call
        if qkv is None or output is None:
            return None
        return CompiledBranch("attention", self._norm, qkv, output, self._qk_norm)

    def _attend(self, x: Tensor, step: PassInputs) -> Tensor:
        tokens, rotated = x.shape[0], self._heads + self._kv_heads
        with self._profiler.measure(GEMM):
            qkv = self._qkv(x)
        heads = qkv.view(tokens, rotated + self._kv_heads, self._head_dim)  # query, key, value
        qk = heads[:, :rotated]
        if self._qk_norm is not None:
            qk = self._qk_norm(qk)
        qk = step.rotation.apply(qk)
        query, key, value = qk[:, : self._heads], qk[:, self._heads :], heads[:, rotated:]
        with self._profiler.measure(ATTENTION):
            return step.attention(self._index, query, key, value).reshape(tokens, -1)


def _qk_norm(spec: AttentionSpec, parts: BranchParts) -> RMSNorm:
    """One row per head: queries and keys are normalized, and later rotated, in one go."""
    query, key = parts.tensor("q_norm"), parts.tensor("k_norm")  # [head_dim]
    rows = torch.cat((query.expand(spec.heads, -1), key.expand(spec.kv_heads, -1)))
    return RMSNorm(rows, parts.norm_eps)


def _spec_of(layer: LayerSpec) -> AttentionSpec:
    assert layer.attention is not None  # as ``is_in`` says
    return layer.attention
