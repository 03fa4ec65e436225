"""Keys and values rounded to 8 or 4 bits with scales: the plain form, which kernels reproduce.

A row is one token's key, or value, of one KV head.

int8: one scale per row, ``max |x| / 127``. int4: one scale per 32 elements, with the sign that
makes the largest of them -8, so that the whole range -8 .. 7 is used, as in llama.cpp's Q4_0; byte
``l`` of a group's 16 holds element ``l`` in its low half and element ``16 + l`` in its high half,
both 8 too large. Scales are bfloat16, rounded away from zero: no element is cut for their sake.
"""

from __future__ import annotations

import torch
from torch import Tensor

GROUP = 32  # elements that share a scale in 4 bits
SMALLEST = 2.0**-100  # of a scale: its reciprocal is finite


def groups_of(head_dim: int, bits: int) -> int:
    """Scales of a row."""
    return 1 if bits == 8 else head_dim // GROUP


def row_bytes(head_dim: int, bits: int) -> int:
    """Bytes of a row without its scales."""
    return head_dim * bits // 8


def encode_rows(rows: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Round ``rows`` [..., head_dim].

    Returns:
        uint8 ``[..., row_bytes]`` and bfloat16 scales ``[..., groups]``. Of a row with NaN or
        infinity some scale is neither finite nor zero.
    """
    head_dim = rows.shape[-1]
    wide = rows.float().reshape(*rows.shape[:-1], groups_of(head_dim, bits), -1)
    if bits == 8:
        scales = _rounded_up(wide.abs().amax(-1) / 127)
        steps = (wide * (1.0 / scales).unsqueeze(-1)).round_()
        return steps.to(torch.int8).view(torch.uint8).flatten(-2), scales.bfloat16()
    largest, least = wide.amax(-1), wide.amin(-1)
    size = _rounded_up(torch.maximum(largest, -least) / 8)
    scales = torch.where(-least >= largest, size, -size)
    steps = (wide * (1.0 / scales).unsqueeze(-1)).round_().clamp_(-8, 7)
    nibbles = (steps + 8).to(torch.uint8).view(*steps.shape[:-1], 2, GROUP // 2)
    packed = nibbles[..., 0, :] | nibbles[..., 1, :] << 4
    return packed.flatten(-2), scales.bfloat16()


def decode_rows(data: Tensor, scales: Tensor, bits: int) -> Tensor:
    """The rows that ``encode_rows`` rounded, float32 ``[..., head_dim]``."""
    if bits == 8:
        return data.view(torch.int8).float() * scales.float()
    packed = data.reshape(*data.shape[:-1], -1, GROUP // 2)  # [..., groups, 16]
    steps = torch.cat((packed & 15, packed >> 4), dim=-1).float() - 8
    return (steps * scales.float().unsqueeze(-1)).flatten(-2)


def _rounded_up(sizes: Tensor) -> Tensor:
    """Positive float32 numbers rounded up to what bfloat16 holds, at least ``SMALLEST``."""
    bits = sizes.contiguous().view(torch.int32)
    up = ((bits + 0xFFFF) & -0x10000).view(torch.float32)
    return torch.where(sizes.isnan(), sizes, up).clamp(min=SMALLEST)
