"""Query and key heads as attention takes them: in which order they are stored, how normalized."""

from __future__ import annotations

import torch
from torch import Tensor

from twostroke.layers.norm import Norm, UnitNorm
from twostroke.model_spec.layer_specs import AttentionSpec, TemperatureSpec
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
        return UnitNorm(parts.norm_eps)
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
