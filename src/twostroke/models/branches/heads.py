"""Query and key heads as attention takes them: in which order they are stored, how normalized."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from twostroke.layers.norm import UnitNorm
from twostroke.model_spec.layer_specs import AttentionSpec, TemperatureSpec
from twostroke.model_spec.rope import RopeSpec
from twostroke.models.branches.base import BranchParts, PassInputs, Rotations

# Normalizes queries and keys, ``[tokens, heads + kv_heads, key_dim]``.
HeadNorm = Callable[[Tensor], Tensor]


def head_norm(spec: AttentionSpec, parts: BranchParts) -> HeadNorm | None:
    """What normalizes queries and keys before they are rotated."""
    if spec.whole_norm:
        query, key = parts.norm("q_norm"), parts.norm("k_norm")

        def normalize(qk: Tensor) -> Tensor:
            both = qk[:, : spec.heads].flatten(1), qk[:, spec.heads :].flatten(1)
            normed = query(both[0].contiguous()), key(both[1].contiguous())
            return torch.cat(normed, -1).view_as(qk)

        return normalize
    if spec.unit_norm:
        return UnitNorm(parts.norm_eps)
    if not spec.qk_norm:
        return None
    # One row per head: queries and keys are normalized, and later rotated, in one go.
    rows = [parts.tensor("q_norm").expand(spec.heads, -1)]  # [heads, key_dim]
    if spec.shares is None:
        rows.append(parts.tensor("k_norm").expand(spec.kv_heads, -1))
    return parts.make_norm(torch.cat(rows), parts.norm_eps, None)


def row_order(spec: AttentionSpec) -> Tensor | None:
    """In which order the checkpoint's rows make queries, keys, values and gates.

    Neighbours that rotate together come to lie half a width apart, in queries and keys alike, so
    that their products stay what they are. Gates lie behind each query head.
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


def value_heads(qkv: Tensor, spec: AttentionSpec, eps: float) -> Tensor:
    """Values ``[tokens, kv_heads, value_dim]`` of the product's outputs, its own or the keys'."""
    first, count = spec.heads * spec.key_dim, spec.kv_heads * spec.value_dim
    if not spec.keys_as_values:
        first += spec.kv_heads * spec.key_dim
    values = qkv[:, first : first + count].view(len(qkv), spec.kv_heads, spec.value_dim)
    if not spec.value_norm:
        return values
    return UnitNorm(eps)(values)


def positioned(qk: Tensor, spec: AttentionSpec, step: PassInputs) -> Tensor:
    """Queries and keys with their positions, if the layer has any: maybe ``qk`` itself, changed."""
    if spec.temperature is not None and step.positions is not None:
        factors = _growth(step.positions, spec.temperature)
        query = (qk[:, : spec.heads] * factors).to(qk.dtype)
        return torch.cat((query, qk[:, spec.heads :]), 1)
    return qk if spec.rope is None else _rotated(qk, spec, spec.rope, step.rotations)


def _growth(positions: Tensor, temperature: TemperatureSpec) -> Tensor:
    """Float32 ``[tokens, 1, 1]``."""
    passed = torch.floor((positions.float() + 1.0) / temperature.every)
    return (torch.log1p(passed) * temperature.scale + 1.0)[:, None, None]


def _rotated(qk: Tensor, spec: AttentionSpec, rope: RopeSpec, rotations: Rotations) -> Tensor:
    width, rotation = spec.rotated, rotations[rope, spec.rotated]
    if width == qk.shape[-1]:
        return rotation.apply(qk)
    return torch.cat((rotation.apply(qk[..., :width].contiguous()), qk[..., width:]), -1)
