"""Weights rearranged, and maybe rounded, as the compiled kernels read them.

The kernels are in ``kernels/cpp/linear/tiles.hpp``.

int8: one scale per output, ``max |w| / 127``. int4: one scale per output and 32 inputs, chosen so
that the largest weight becomes -8 and the whole range -8 .. 7 is used, as in llama.cpp's Q4_0.
Activations are rounded by the kernels, to int8 with one scale per token.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from twostroke.kernels.library import GROUP, LANES
from twostroke.layers.pages import fresh_tensor


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """A weight ``[outputs, inputs]`` in blocks of 16 outputs.

    Attributes:
        format: ``bfloat16``, ``int8`` or ``int4``; or one of ``stored_weights.py``, which lays out
            ``data`` and ``scales`` as bytes.
        data: bfloat16 ``[blocks, inputs / 2, 16, 2]``; int8 ``[blocks, inputs / 4, 16, 4]``; int4,
            as uint8, ``[blocks, inputs / 32, 4, 16, 4]`` with two weights a byte.
        scales: float32; int8 ``[blocks * 16]``, int4 ``[blocks, inputs / 32, 16]``.
        offsets: int32 ``[blocks * 16]``, for int8: -128 times an output's sum. The AVX-512 kernel
            multiplies unsigned activations, 128 too large, and begins its sums here.
    """

    format: str
    data: Tensor
    scales: Tensor | None
    outputs: int
    inputs: int
    offsets: Tensor | None = None

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return sum(
            part.nbytes for part in (self.data, self.scales, self.offsets) if part is not None
        )


def can_pack(weight: Tensor, format: str) -> bool:
    """Whether the kernels take this weight ``[outputs, inputs]`` in this format."""
    multiple = {"bfloat16": 2, "int8": GROUP, "int4": GROUP}[format]
    return (
        weight.device.type == "cpu"
        and weight.dtype == torch.bfloat16
        and weight.shape[1] % multiple == 0
    )


def pack(weight: Tensor, format: str) -> PackedWeight:
    """Pack a bfloat16 weight ``[outputs, inputs]``.

    Outputs are padded to a multiple of 16 with zeros.
    """
    outputs, inputs = weight.shape
    if outputs % LANES:  # padding by nothing would copy
        weight = F.pad(weight, (0, 0, 0, -outputs % LANES))
    if format == "bfloat16":
        return PackedWeight(format, _blocks(weight, 2), None, outputs, inputs)
    if format == "int8":
        return pack_int8(*quantize_int8(weight), outputs)
    return pack_int4(*quantize_int4(weight), outputs)


def pack_int8(q: Tensor, scales: Tensor, outputs: int) -> PackedWeight:
    """Pack int8 ``[rows, inputs]`` with scales ``[rows]``, of which ``outputs`` are no padding."""
    if len(q) % LANES:
        padding = -len(q) % LANES
        q, scales = F.pad(q, (0, 0, 0, padding)), F.pad(scales, (0, padding))
    offsets = q.sum(1, dtype=torch.int32) * -128
    return PackedWeight("int8", _blocks(q, 4), scales, outputs, q.shape[1], offsets)


def pack_int4(q: Tensor, scales: Tensor, outputs: int) -> PackedWeight:
    """Pack int8 in -8 .. 7 ``[rows, inputs]``, with float32 scales ``[rows, inputs / 32]``.

    Args:
        outputs: How many rows are no padding.
    """
    if len(q) % LANES:
        q, scales = (F.pad(part, (0, 0, 0, -len(part) % LANES)) for part in (q, scales))
    inputs = q.shape[1]
    pairs = (q + 8).to(torch.uint8).view(-1, LANES, inputs // GROUP, 4, 2, 4)
    nibbles = pairs[:, :, :, :, 0] | pairs[:, :, :, :, 1] << 4  # [blocks, 16, groups, 4, 4]
    data = _settled(nibbles.permute(0, 2, 3, 1, 4))
    return PackedWeight("int4", data, _scale_blocks(scales), outputs, inputs)


def unpack(packed: PackedWeight) -> Tensor:
    """The weight as the kernels see it, ``[outputs, inputs]``.

    bfloat16 as it was, float32 after rounding.
    """
    data, inputs = packed.data, packed.inputs
    if packed.format == "int4":
        both = torch.stack((data & 15, data >> 4), dim=-2)  # [blocks, groups, 4, 16, 2, 4]
        q = both.permute(0, 3, 1, 2, 4, 5).reshape(-1, inputs // GROUP, GROUP).float() - 8
        assert packed.scales is not None
        scales = packed.scales.permute(0, 2, 1).reshape(-1, inputs // GROUP, 1)
        return (q * scales).view(-1, inputs)[: packed.outputs]
    rows = data.permute(0, 2, 1, 3).reshape(-1, inputs)
    if packed.scales is not None:
        rows = rows.float() * packed.scales[:, None]
    return rows[: packed.outputs]


def rows_of(packed: PackedWeight, indices: Tensor) -> Tensor:
    """Rows ``indices`` [rows] of a bfloat16 weight, ``[rows, inputs]``."""
    return packed.data[indices // LANES, :, indices % LANES].view(len(indices), packed.inputs)


def quantize_int8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Round to int8 of the same shape and float32 scales ``[outputs]``; ``w ~ q * scale``."""
    wide = weight.float()
    scales = wide.abs().amax(1) / 127
    q = (wide / scales.clamp(min=torch.finfo(torch.float32).tiny)[:, None]).round_()
    return q.to(torch.int8), scales


def quantize_int4(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Round to int8 in -8 .. 7 of the same shape and scales ``[outputs, inputs / 32]``."""
    groups = weight.float().view(len(weight), -1, GROUP)
    largest = groups.gather(
        2, groups.abs().argmax(2, keepdim=True)
    )  # [outputs, groups, 1], with its sign
    scales = largest / -8
    inverse = torch.where(scales == 0, 0.0, 1 / scales)
    q = (groups * inverse).round_().clamp_(-8, 7)
    return q.view(weight.shape).to(torch.int8), scales.squeeze(2)


def _blocks(rows: Tensor, together: int) -> Tensor:
    blocks = rows.view(-1, LANES, rows.shape[1] // together, together)
    return _settled(blocks.permute(0, 2, 1, 3))


def _settled(data: Tensor) -> Tensor:
    """A contiguous copy where it is read fastest."""
    return fresh_tensor(data.shape, data.dtype).copy_(data)


def _scale_blocks(scales: Tensor) -> Tensor:
    return scales.view(-1, LANES, scales.shape[1]).permute(0, 2, 1).contiguous()
