"""Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434): one compressed row for each token.

What makes keys and values of the latents is moved to the queries and to the output ("absorbed"), so
that the cache holds latents alone and every head reads the same rows.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from twostroke.kernels.pass_calls import LATENTS, LatentCall, MixerCall
from twostroke.layers.compiled.branches import CompiledBranch
from twostroke.layers.head_linear import HeadLinear
from twostroke.layers.linear import Linear
from twostroke.layers.norm import RMSNorm
from twostroke.layers.recurrent_state import StateShape
from twostroke.model_spec.layer_specs import AttentionSpec, LatentSpec, LayerSpec
from twostroke.models.branches.addition import Hidden
from twostroke.models.branches.base import BranchParts, PassInputs
from twostroke.models.parameters import Parameter, linear_parameters, vector_parameter
from twostroke.observability.profile import ATTENTION, GEMM

_EPS = 1e-6  # of the norms of what is compressed, whatever the file says of others


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentKind:
    """Names in checkpoints, see ``BranchKind``."""

    norm: str = "input_layernorm"
    prefix: str = "self_attn."

    def is_in(self, layer: LayerSpec) -> bool:
        return layer.attention is not None and layer.attention.latent is not None

    def parameters(self, layer: LayerSpec, hidden: int) -> list[Parameter]:
        spec, latent = _spec_of(layer)
        own, queries = self.prefix, spec.heads * spec.key_dim
        up = spec.heads * (spec.key_dim - spec.rotated + spec.value_dim)
        down, bias = [(f"{own}kv_a_proj_with_mqa", latent.cached)], spec.output_bias
        parameters = [vector_parameter("input_norm", self.norm, hidden)]
        if latent.query_rank is None:
            parameters += linear_parameters("query", [(f"{own}q_proj", queries)], hidden, False)
        else:
            rank = latent.query_rank
            parameters += linear_parameters("query_down", [(f"{own}q_a_proj", rank)], hidden, bias)
            parameters.append(vector_parameter("query_norm", f"{own}q_a_layernorm", rank))
            parameters += linear_parameters("query", [(f"{own}q_b_proj", queries)], rank, False)
        return [
            *parameters,
            *linear_parameters("latent_down", down, hidden, bias),
            vector_parameter("latent_norm", f"{own}kv_a_layernorm", latent.value),
            *linear_parameters("latent_up", [(f"{own}kv_b_proj", up)], latent.value, False),
            *linear_parameters(
                "output", [(f"{own}o_proj", hidden)], spec.heads * spec.value_dim, bias
            ),
        ]

    def build(self, layer: LayerSpec, parts: BranchParts) -> LatentBranch:
        return LatentBranch(*_spec_of(layer), parts)


class LatentBranch:
    """``x + output(attention(query(norm(x)), latents(norm(x))))``, see ``Branch``."""

    mixes_tokens = True
    state: tuple[StateShape, ...] = ()

    def __init__(self, spec: AttentionSpec, latent: LatentSpec, parts: BranchParts) -> None:
        self._index, self._spec, self._latent = parts.index, spec, latent
        self._profiler = parts.profiler
        self._norm = parts.norm("input_norm")
        self._query_down: tuple[Linear, RMSNorm] | None = None
        if latent.query_rank is not None:
            norm = RMSNorm(parts.tensor("query_norm"), _EPS, parts.kernels)
            self._query_down = parts.linear("query_down"), norm
        self.plain = spec.key_dim - spec.rotated
        rotary, size = _pair_order(spec.rotated) if spec.interleaved else None, latent.value
        self._query = parts.linear("query", _query_rows(spec, rotary))
        self._down = parts.linear("latent_down", _behind(size, rotary))
        self._latent_norm = RMSNorm(parts.tensor("latent_norm"), _EPS, parts.kernels)
        up = parts.tensor("latent_up.weight").view(spec.heads, -1, size)
        # From a query's plain part to latents, and from latents to values.
        self.keys = HeadLinear(up[:, : self.plain].transpose(1, 2), parts.kernels)
        self.values = HeadLinear(up[:, self.plain :], parts.kernels)
        self._add = parts.addition("output", "")

    def __call__(
        self, hidden: Hidden, step: PassInputs, rows: Tensor | None, onto: Tensor | None = None
    ) -> Hidden:
        x, normed = hidden.normed(self._norm)
        onto = x if onto is None else onto
        query, latents = self.query_and_latents(normed, step)
        plain, rotated = query[..., : self.plain], query[..., self.plain :]
        absorbed = self.keys(plain)  # [tokens, heads, latent]
        with self._profiler.measure(ATTENTION):
            attended = step.attention(
                self._index, torch.cat((absorbed, rotated), -1), latents.unsqueeze(1)
            )
        if rows is not None:
            attended, onto = attended[rows], onto[rows]
        mixed = self.values(attended).flatten(1)
        with self._profiler.measure(GEMM):
            return self._add(mixed, onto)

    def query_and_latents(self, x: Tensor, step: PassInputs) -> tuple[Tensor, Tensor]:
        """``[tokens, heads, key_dim]``, and ``[tokens, width]`` as cached, of a normed ``x``."""
        size = self._latent.value
        assert self._spec.rope is not None  # part of each query is rotated
        rotation = step.rotations[self._spec.rope, self._spec.rotated]
        with self._profiler.measure(GEMM):
            inner = x
            if self._query_down is not None:
                down, norm = self._query_down
                inner = norm(down(x))
            query = self._query(inner).view(len(x), self._spec.heads, -1)
            latents = self._down(x)
        rotated = rotation.apply(query[..., self.plain :].contiguous())
        key = rotation.apply(latents[:, None, size:].contiguous())[:, 0]
        normed = self._latent_norm(latents[:, :size].contiguous())
        return torch.cat((query[..., : self.plain], rotated), -1), torch.cat((normed, key), -1)

    @property
    def linears(self) -> tuple[Linear, ...]:
        first = () if self._query_down is None else self._query_down[:1]
        return (*first, self._query, self._down, self._add.linear)

    def compiled(self) -> CompiledBranch | None:
        own, norm, linear = self._latent_call(), self._norm.kernel_call, self._down.kernel_call
        output, rope = self._add.compiled(), self._spec.rope
        if norm is None or linear is None or output is None or own is None or rope is None:
            return None
        heads, latent = self._spec.heads, self._latent
        call = MixerCall(norm=norm, input=linear, output=output, kind=LATENTS)
        call.own = ctypes.addressof(own)
        call.wide, call.narrow = heads * latent.cached, heads * latent.value
        return CompiledBranch(call, attention=own, rope=(rope, self._spec.rotated))

    def _latent_call(self) -> LatentCall | None:
        """The compiled pass's, but for the angles; ``None`` if PyTorch computes some part of it."""
        keys, values = self.keys.kernel_calls, self.values.kernel_calls
        norm, query = self._latent_norm.kernel_call, self._query.kernel_call
        if keys is None or values is None or norm is None or query is None:
            return None
        call = LatentCall(latent_norm=norm, query=query, keys=keys, values=values, eps=_EPS)
        if self._query_down is not None:
            down, query_norm = (own.kernel_call for own in self._query_down)
            if down is None or query_norm is None:
                return None
            call.query_down, call.query_norm = down, query_norm
        return call


def _pair_order(width: int) -> Tensor:
    """The order in which neighbours that rotate together lie half a width apart."""
    return torch.tensor([*range(0, width, 2), *range(1, width, 2)])


def _behind(first: int, rotary: Tensor | None) -> Tensor | None:
    """Rows of which the rotated ones come after ``first`` others."""
    return None if rotary is None else torch.cat((torch.arange(first), first + rotary))


def _query_rows(spec: AttentionSpec, rotary: Tensor | None) -> Tensor | None:
    own = _behind(spec.key_dim - spec.rotated, rotary)
    if own is None:
        return None
    return ((torch.arange(spec.heads) * spec.key_dim)[:, None] + own).flatten()


def _spec_of(layer: LayerSpec) -> tuple[AttentionSpec, LatentSpec]:
    assert layer.attention is not None and layer.attention.latent is not None  # as ``is_in`` says
    return layer.attention, layer.attention.latent
