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
        return layer.attention is not None and layer.attention.latent is None

    def parameters(self, layer: LayerSpec, hidden: int) -> list[Parameter]:
        spec = _spec_of(layer)
        outputs = [(self.query, spec.heads * spec.key_dim)]
        norms = [("q_norm", self.query_norm)]
        if spec.shares is None:
            outputs.append((self.key, spec.kv_heads * spec.key_dim))
            outputs.append((self.value, spec.kv_heads * spec.value_dim))
            norms.append(("k_norm", self.key_norm))
        parameters = [vector_parameter("input_norm", self.norm, hidden)]
        parameters += linear_parameters("qkv", outputs, hidden, spec.qkv_bias)
        if spec.qk_norm:
            parameters += [vector_parameter(name, own, spec.key_dim) for name, own in norms]
        output, attended = [(self.output, hidden)], spec.heads * spec.value_dim
        return parameters + linear_parameters("output", output, attended, spec.output_bias)

    def build(self, layer: LayerSpec, parts: BranchParts) -> AttentionBranch:
        return AttentionBranch(_spec_of(layer), parts)


class AttentionBranch:
    """``x + output(attention(qkv(norm(x))))``, see ``Branch``.

    Without keys and values where it shares those of another layer.
    """

    mixes_tokens = True
    state: tuple[StateShape, ...] = ()

    def __init__(self, spec: AttentionSpec, parts: BranchParts) -> None:
        self._index = parts.index
        self._profiler = parts.profiler
        self._spec = spec
        self._kv_heads = spec.kv_heads if spec.shares is None else 0
        self._norm = parts.norm("input_norm")
        self._qkv, self._output = parts.linear("qkv"), parts.linear("output")
        self._qk_norm = _qk_norm(spec, parts) if spec.qk_norm else None

    def __call__(self, x: Tensor, step: PassInputs, rows: Tensor | None) -> Tensor:
        attended = self._attend(self._norm(x), step)  # [tokens, heads * value_dim]
        if rows is not None:
            attended, x = attended[rows], x[rows]
        with self._profiler.measure(GEMM):
            return self._output(attended, residual=x)

    @property
    def linears(self) -> tuple[Linear, ...]:
        return self._qkv, self._output

    def compiled(self) -> CompiledBranch | None:
        qkv, output, spec = self._qkv.kernel_call, self._output.kernel_call, self._spec
        is_alike = spec.shares is None and spec.key_dim == spec.value_dim == spec.rotated
        if qkv is None or output is None or not is_alike:
            return None
        return CompiledBranch("attention", self._norm, qkv, output, spec.key_dim, self._qk_norm)

    def _attend(self, x: Tensor, step: PassInputs) -> Tensor:
        tokens, spec = x.shape[0], self._spec
        rotated = spec.heads + self._kv_heads
        with self._profiler.measure(GEMM):
            qkv = self._qkv(x)  # query, key, value
        qk = qkv[:, : rotated * spec.key_dim].view(tokens, rotated, spec.key_dim)
        if self._qk_norm is not None:
            qk = self._qk_norm(qk)
        qk = step.rotations[spec.rotated].apply(qk)
        query, key, value = qk[:, : spec.heads], None, None
        if self._kv_heads:
            key = qk[:, spec.heads :]
            value = qkv[:, rotated * spec.key_dim :].view(tokens, self._kv_heads, spec.value_dim)
        with self._profiler.measure(ATTENTION):
            return step.attention(self._index, query, key, value).reshape(tokens, -1)


def _qk_norm(spec: AttentionSpec, parts: BranchParts) -> RMSNorm:
    """One row per head: queries and keys are normalized, and later rotated, in one go."""
    rows = [parts.tensor("q_norm").expand(spec.heads, -1)]  # [heads, key_dim]
    if spec.shares is None:
        rows.append(parts.tensor("k_norm").expand(spec.kv_heads, -1))
    return RMSNorm(torch.cat(rows), parts.norm_eps)


def _spec_of(layer: LayerSpec) -> AttentionSpec:
    assert layer.attention is not None  # as ``is_in`` says
    return layer.attention
