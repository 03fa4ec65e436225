"""Softmax attention over grouped heads, with rotary positions."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from twostroke.layers.activation import sigmoid_mul
from twostroke.layers.compiled.branches import CompiledBranch, compile_attention, norm_call
from twostroke.layers.linear import Linear
from twostroke.layers.recurrent_state import StateShape
from twostroke.model_spec.layer_specs import AttentionSpec, LayerSpec
from twostroke.models.branches.addition import Hidden
from twostroke.models.branches.base import BranchParts, PassInputs
from twostroke.models.branches.heads import (
    head_norm,
    heads_call,
    positioned,
    row_order,
    value_heads,
    value_norm,
)
from twostroke.models.parameters import Parameter, linear_parameters, vector_parameter
from twostroke.observability.profile import ATTENTION, GEMM


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionKind:
    """Names in checkpoints, see ``BranchKind``. Which biases and norms there are, the spec says.

    Attributes:
        norm: The name of the hidden state's norm; empty: there is none.
        fused: Query, key and value in one, in place of the three.
        added_norm: The name of the norm of what is added; empty: there is none.
    """

    norm: str = "input_layernorm"
    fused: str = ""
    query: str = "self_attn.q_proj"
    key: str = "self_attn.k_proj"
    value: str = "self_attn.v_proj"
    output: str = "self_attn.o_proj"
    query_norm: str = "self_attn.q_norm"
    key_norm: str = "self_attn.k_norm"
    sinks: str = "self_attn.sinks"
    added_norm: str = ""

    def is_in(self, layer: LayerSpec) -> bool:
        return layer.attention is not None and layer.attention.latent is None

    def parameters(self, layer: LayerSpec, hidden: int) -> list[Parameter]:
        spec = _spec_of(layer)
        query, kv = spec.heads * spec.key_dim * (1 + spec.gated), spec.kv_heads
        outputs, norms = [(self.query, query)], [("q_norm", self.query_norm, spec.heads)]
        if spec.shares is None:
            both = [(self.key, kv * spec.key_dim), (self.value, kv * spec.value_dim)]
            outputs += both[:1] if spec.keys_as_values else both
            norms.append(("k_norm", self.key_norm, kv))
        sections = tuple(rows for _, rows in outputs) if self.fused else ()
        if self.fused:
            outputs = [(self.fused, sum(sections))]
        parameters = [vector_parameter("input_norm", self.norm, hidden)] if self.norm else []
        parameters += linear_parameters("qkv", outputs, hidden, spec.qkv_bias, sections)
        if spec.qk_norm or spec.whole_norm:
            for name, own, heads in norms:
                size = spec.key_dim * (heads if spec.whole_norm else 1)
                parameters.append(vector_parameter(name, own, size))
        if spec.sinks:
            parameters.append(Parameter("sinks", ((self.sinks, (spec.heads,)),)))
        if self.added_norm:
            parameters.append(vector_parameter("added_norm", self.added_norm, hidden))
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
        self._kernels, self._profiler = parts.kernels, parts.profiler
        self._spec = spec
        self._kv_heads = spec.kv_heads if spec.shares is None else 0
        self._norm = parts.optional_norm("input_norm")
        self._qkv = parts.linear("qkv", row_order(spec))
        self._qk_norm = head_norm(spec, parts)
        self._value_norm = value_norm(spec, parts)
        self._sinks = parts.tensor("sinks").float() if spec.sinks else None
        self._add = parts.addition("output", "added_norm")

    def __call__(
        self, hidden: Hidden, step: PassInputs, rows: Tensor | None, onto: Tensor | None = None
    ) -> Hidden:
        x, normed = hidden.normed(self._norm)
        onto = x if onto is None else onto
        attended = self._attend(normed, step)
        if rows is not None:  # attended: [tokens, heads * value_dim]
            attended, onto = attended[rows], onto[rows]
        with self._profiler.measure(GEMM):
            return self._add(attended, onto)

    @property
    def linears(self) -> tuple[Linear, ...]:
        return self._qkv, self._add.linear

    def compiled(self) -> CompiledBranch | None:
        norm, output, rope = norm_call(self._norm), self._add.compiled(), self._spec.rope
        heads = heads_call(self._spec, self._qk_norm, self._value_norm, self._sinks)
        rotation = None if rope is None else (rope, self._spec.rotated)
        return compile_attention(norm, self._qkv.kernel_call, output, heads, rotation)

    def _attend(self, x: Tensor, step: PassInputs) -> Tensor:
        tokens, spec = x.shape[0], self._spec
        heads = spec.heads + self._kv_heads
        with self._profiler.measure(GEMM):
            qkv = self._qkv(x)  # query, key, value
        qk = qkv[:, : heads * spec.key_dim].view(tokens, heads, spec.key_dim)
        if self._qk_norm is not None:
            qk = self._qk_norm(qk)
        qk = positioned(qk, spec, step, self._kernels)
        query, key, value = qk[:, : spec.heads], None, None
        if self._kv_heads:
            key, value = qk[:, spec.heads :], value_heads(qkv, spec, self._value_norm)
        with self._profiler.measure(ATTENTION):
            attended = step.attention(self._index, query, key, value, self._sinks)
            attended = attended.reshape(tokens, -1)
        if spec.gated:
            attended = sigmoid_mul(qkv[:, -attended.shape[1] :], attended, self._kernels)
        return attended


def _spec_of(layer: LayerSpec) -> AttentionSpec:
    assert layer.attention is not None  # as ``is_in`` says
    return layer.attention
