"""Query and key heads as attention takes them: in which order they are stored, how normalized."""

from __future__ import annotations

import torch
from torch import Tensor

from twostroke.layers.norm import Norm
from twostroke.model_spec.layer_specs import AttentionSpec
from twostroke.models.branches.base import BranchParts, Rotations


class HeadNorm:
    """Normalizes queries and keys before they are rotated.

    Args:
        norm: Of each head, with a row of weights for each; or of ``parts``, one after the other.
        parts: A norm of all query heads together, and one of all key heads.
    """

    def __init__(self, norm: Norm, parts: tuple[Norm, ...] = ()) -> None:
        self.norm = norm
        self.parts = parts

    def __call__(self, qk: Tensor) -> Tensor:
        """Of ``[tokens, heads + kv_heads, key_dim]``."""
        if not self.parts:
            return self.norm(qk)
        rows, sizes = qk.flatten(1), [len(norm.weight) for norm in self.parts]
        normed = [norm(own) for norm, own in zip(self.parts, torch.split(rows, sizes, -1))]
        return torch.cat(normed, -1).view_as(qk)


def head_norm(spec: AttentionSpec, parts: BranchParts) -> HeadNorm | None:
    """What normalizes queries and keys, if the layer does."""
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


def rotate(qk: Tensor, spec: AttentionSpec, rotations: Rotations) -> Tensor:
    """Queries and keys with their positions, if the layer rotates: maybe ``qk`` itself, changed."""
    if spec.rope is None:
        return qk
    width, rotation = spec.rotated, rotations[spec.rope, spec.rotated]
    if width == qk.shape[-1]:
        return rotation.apply(qk)
    return torch.cat((rotation.apply(qk[..., :width].contiguous()), qk[..., width:]), -1)
