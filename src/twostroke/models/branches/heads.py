"""Query and key heads as attention takes them: in which order they are stored, how normalized."""

from __future__ import annotations

import torch
from torch import Tensor

from twostroke.kernels.library import Library
from twostroke.kernels.pass_calls import HeadsCall
from twostroke.layers.compiled.branches import norm_call
from twostroke.layers.norm import Norm, UnitNorm
from twostroke.model_spec.factors import TemperatureSpec
from twostroke.model_spec.layer_specs import AttentionSpec
from twostroke.model_spec.rope import RopeSpec
from twostroke.models.branches.base import BranchParts, PassInputs, Rotations


class HeadNorm:
    """Normalizes queries and keys before they are rotated.

    Args:
        norm: Has a row of weights for each head; with ``parts``, their weights in a row.
        parts: A norm of all query heads together, and one of all key heads.
    """

    def __init__(self, norm: Norm, parts: tuple[Norm, ...] = ()) -> None:
        self.norm = norm
        self.parts = parts

    def __call__(self, qk: Tensor) -> Tensor:
        """Normalize ``[tokens, heads + kv_heads, key_dim]``."""
        if not self.parts:
            return self.norm(qk)
        rows, sizes = qk.flatten(1), [len(norm.weight) for norm in self.parts]
        normed = [norm(own) for norm, own in zip(self.parts, torch.split(rows, sizes, -1))]
        return torch.cat(normed, -1).view_as(qk)


def head_norm(spec: AttentionSpec, parts: BranchParts) -> HeadNorm | UnitNorm | None:
    """What normalizes queries and keys, if the layer does."""
    if spec.unit_norm:
        kv_heads = spec.kv_heads if spec.shares is None else 0
        return UnitNorm(parts.norm_eps, (spec.heads + kv_heads, spec.key_dim), parts.kernels)
    if not (spec.whole_norm or spec.qk_norm):
        return None
    counts = {"q_norm": spec.heads}
    if spec.shares is None:
        counts["k_norm"] = spec.kv_heads
    weights = [parts.tensor(name) for name in counts]
    if spec.whole_norm:
        together, *apart = (
            parts.make_norm(weight, parts.norm_eps, parts.kernels)
            for weight in (torch.cat(weights), *weights)
        )
        return HeadNorm(together, tuple(apart))
    # One row per head: queries and keys are normalized, and later rotated, in one go.
    rows = [own.expand(heads, -1) for own, heads in zip(weights, counts.values())]
    return HeadNorm(parts.make_norm(torch.cat(rows), parts.norm_eps, parts.kernels))


def value_norm(spec: AttentionSpec, parts: BranchParts) -> UnitNorm | None:
    """What normalizes values, if the layer does."""
    shape = spec.kv_heads, spec.value_dim
    return UnitNorm(parts.norm_eps, shape, parts.kernels) if spec.value_norm else None


def heads_call(
    spec: AttentionSpec,
    heads: HeadNorm | UnitNorm | None,
    values: UnitNorm | None,
    sinks: Tensor | None,
) -> HeadsCall | None:
    """The compiled pass's, without the angles; ``None`` if PyTorch computes some norm."""
    own = heads.norm if isinstance(heads, HeadNorm) else heads
    norm, norm_of_values = norm_call(own), norm_call(values)
    if norm is None or norm_of_values is None:
        return None
    call = HeadsCall(
        norm=norm,
        value_norm=norm_of_values,
        sinks=None if sinks is None else sinks.data_ptr(),
        whole_heads=spec.whole_norm,
        is_gated=spec.gated,
        keys_as_values=spec.keys_as_values,
        shares_cache=spec.shares is not None,
    )
    if spec.temperature is not None:
        call.growth, call.growth_every = spec.temperature.scale, spec.temperature.every
    return call


def row_order(spec: AttentionSpec) -> Tensor | None:
    """The order of the checkpoint's rows that makes queries, keys, values and gates.

    Neighbours that rotate together come to lie half a width apart, in queries and keys alike, so
    that their products stay what they are. Gates follow each query head.
    """
    if not (spec.interleaved or spec.gated):
        return None
    width, dim, kv_heads = spec.rotated, spec.key_dim, spec.kv_heads if spec.shares is None else 0
    own = torch.arange(dim)
    if spec.interleaved:
        own = torch.tensor([*range(0, width, 2), *range(1, width, 2), *range(width, dim)])
    stride = dim * (1 + spec.gated)
    queries = (torch.arange(spec.heads) * stride)[:, None] + own
    first_key = spec.heads * stride
    keys = first_key + (torch.arange(kv_heads) * dim)[:, None] + own
    first_value = first_key + kv_heads * dim
    values = torch.arange(first_value, first_value + kv_heads * spec.value_dim)
    gates = (torch.arange(spec.heads) * stride)[:, None] + torch.arange(dim, stride)
    return torch.cat((queries.flatten(), keys.flatten(), values, gates.flatten()))


def value_heads(qkv: Tensor, spec: AttentionSpec, norm: UnitNorm | None) -> Tensor:
    """Values ``[tokens, kv_heads, value_dim]`` of the product's outputs, its own or the keys'."""
    first, count = spec.heads * spec.key_dim, spec.kv_heads * spec.value_dim
    if not spec.keys_as_values:
        first += spec.kv_heads * spec.key_dim
    values = qkv[:, first : first + count].view(len(qkv), spec.kv_heads, spec.value_dim)
    return values if norm is None else norm(values)


def positioned(
    qk: Tensor, spec: AttentionSpec, step: PassInputs, library: Library | None
) -> Tensor:
    """Queries and keys with their positions, if the layer has any: maybe ``qk`` itself, changed."""
    if spec.temperature is not None and step.positions is not None:
        return _grown(qk, spec.heads, step.positions, spec.temperature, library)
    return qk if spec.rope is None else _rotated(qk, spec, spec.rope, step.rotations)


def _grown(
    qk: Tensor,
    num_queries: int,
    positions: Tensor,
    temperature: TemperatureSpec,
    library: Library | None,
) -> Tensor:
    every, scale = temperature.every, temperature.scale
    if library is not None:
        size = num_queries * qk.shape[-1]
        rows = qk.data_ptr(), qk.stride(0), len(qk), size
        library.grow(*rows, positions.data_ptr(), every, scale)
        return qk
    growth = torch.log1p(torch.floor((positions.float() + 1.0) / every)) * scale + 1.0
    query = (qk[:, :num_queries] * growth[:, None, None]).to(qk.dtype)
    return torch.cat((query, qk[:, num_queries:]), 1)


def _rotated(qk: Tensor, spec: AttentionSpec, rope: RopeSpec, rotations: Rotations) -> Tensor:
    width, rotation = spec.rotated, rotations[rope, spec.rotated]
    if width == qk.shape[-1]:
        return rotation.apply(qk)
    return torch.cat((rotation.apply(qk[..., :width].contiguous()), qk[..., width:]), -1)
