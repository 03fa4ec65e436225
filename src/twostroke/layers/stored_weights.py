"""Weights that stay as their file stores them, as the compiled kernels read them.

The kernels are in ``kernels/cpp/linear/stored.hpp``, which describes the formats. Every number is
the file's: only their order is the kernels' own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from twostroke.kernels.library import LANES
from twostroke.layers.packing import PackedWeight, pack_int4, pack_int8
from twostroke.layers.pages import fresh_tensor

# Inputs that share a scale, and what is taken off each code.
GROUP_INPUTS = {
    **dict.fromkeys(("int4", "uint4", "q8_0", "q4_k", "q5_k", "mxfp4"), 32),
    "q6_k": 16,
}
# Bits of a weight in memory, with its scales; of int8 they are too few to count.
PACKED_BITS = {
    "int4": 5.0,
    "uint4": 5.25,
    "int8": 8.0,
    "q8_0": 9.0,
    "q4_k": 4.75,
    "q5_k": 5.75,
    "q6_k": 6.625,
    "mxfp4": 4.25,
}
SUPER_INPUTS = 256  # that share factors, in formats whose scales are integers
_PLANE_BITS = {"q5_k": 1, "q6_k": 2}  # of a code, above the four of its nibble
_MXFP4 = torch.tensor([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12]) / 2


def inputs_together(format_: str) -> int:
    """How many inputs have a scale of their own, and cannot be parted."""
    return SUPER_INPUTS if "_k" in format_ else 32


@dataclass(frozen=True, slots=True)
class StoredWeight:
    """A weight ``[outputs, inputs]`` in one of ``GROUP_INPUTS``, or int8, a scale by output.

    Attributes:
        codes: uint8 ``[outputs, inputs]``; of q8_0, int4 (which is GGUF's Q4_0) and int8, int8.
        factors: float32, of q8_0, int4 and uint4 ``[outputs, inputs / 32]``, of int8
            ``[outputs, 1]``, else ``[outputs, inputs / 256]``; ``None`` for mxfp4.
        scales: Integers that a group's codes and its factor are multiplied with, ``[outputs,
            groups]``, uint8, of q6_k int8. Of mxfp4, exponents of 2, 127 too large.
        minimum_factors: Like ``factors``, for ``minimums``.
        minimums: uint8 ``[outputs, groups]``. Times its factor it is taken off each weight. Of
            uint4, which AWQ has, zero points: they are taken off the codes.
    """

    format: str
    codes: Tensor
    factors: Tensor | None = None
    scales: Tensor | None = None
    minimum_factors: Tensor | None = None
    minimums: Tensor | None = None

    @property
    def outputs(self) -> int:
        return len(self.codes)

    def reordered(self, order: Tensor) -> StoredWeight:
        """Take rows in another order."""
        return self._map(lambda part: part[order])

    def inputs_between(self, first: int, end: int) -> StoredWeight:
        """Some of the columns, from one group that shares scales to another."""
        inputs = self.codes.shape[1]

        def cut(part: Tensor) -> Tensor:
            columns = part.shape[1]
            if columns == 1 and part is self.factors:
                return part  # one for all inputs of a row
            return part[:, first * columns // inputs : end * columns // inputs].contiguous()

        return self._map(cut)

    def to(self, device: torch.device) -> StoredWeight:
        return self._map(lambda part: part.to(device))

    def packed(self) -> PackedWeight:
        """The weight as the kernels read it. Outputs are padded to a multiple of 16 with zeros."""
        outputs, inputs = self.codes.shape
        if self.format == "int4" and self.factors is not None:
            return pack_int4(self.codes, self.factors, outputs)
        if self.format == "int8" and self.factors is not None:
            return pack_int8(self.codes, self.factors.flatten(), outputs)
        own = self
        if outputs % LANES:
            own = self._map(lambda part: F.pad(part, (0, 0, 0, -outputs % LANES)))
        return PackedWeight(self.format, _codes(own), _scales(own), outputs, inputs)

    def values(self) -> Tensor:
        """The weights themselves, float32 ``[outputs, inputs]``."""
        groups = self.codes.shape[1] // GROUP_INPUTS[self.format]
        codes = self.codes.view(len(self.codes), groups, -1).float()
        if self.format == "mxfp4":
            assert self.scales is not None
            codes = _MXFP4[self.codes.long()].view(codes.shape)
            return torch.ldexp(codes, self.scales.int()[:, :, None] - 127).flatten(1)
        assert self.factors is not None
        factors = self.factors.repeat_interleave(groups // self.factors.shape[1], 1)
        scales = factors if self.scales is None else factors * self.scales
        codes = codes - 32 if self.format == "q6_k" else codes
        if self.format == "uint4" and self.minimums is not None:
            codes = codes - self.minimums[:, :, None]
        values = scales[:, :, None] * codes
        if self.minimums is not None and self.minimum_factors is not None:
            factors = self.minimum_factors.repeat_interleave(8, 1)
            values = values - (factors * self.minimums)[:, :, None]
        return values.flatten(1)

    def _map(self, change: Callable[[Tensor], Tensor]) -> StoredWeight:
        def changed(part: Tensor | None) -> Tensor | None:
            return None if part is None else change(part)

        return StoredWeight(
            self.format,
            change(self.codes),
            changed(self.factors),
            changed(self.scales),
            changed(self.minimum_factors),
            changed(self.minimums),
        )


def from_mxfp4(blocks: Tensor, scales: Tensor) -> StoredWeight:
    """MXFP4 as safetensors store it: uint8 ``[outputs, groups, 16]``, the low bits come first."""
    codes = torch.stack((blocks & 15, blocks >> 4), -1).flatten(1)
    return StoredWeight("mxfp4", codes, scales=scales)


def join_weights(weights: Sequence[StoredWeight]) -> StoredWeight:
    """One after the other; all are of the same format."""

    def together(parts: Sequence[Tensor | None]) -> Tensor | None:
        own = [part for part in parts if part is not None]
        return torch.cat(own) if own else None

    return StoredWeight(
        weights[0].format,
        torch.cat([each.codes for each in weights]),
        together([each.factors for each in weights]),
        together([each.scales for each in weights]),
        together([each.minimum_factors for each in weights]),
        together([each.minimums for each in weights]),
    )


def stored_rows(packed: PackedWeight, indices: Tensor) -> Tensor:
    """Rows ``indices`` [rows] of a packed weight, decoded: bfloat16 ``[rows, inputs]``."""
    blocks, lanes = indices // LANES, indices % LANES
    size = GROUP_INPUTS[packed.format]
    groups = packed.inputs // size
    data = packed.data[blocks, :, :, lanes]  # [rows, groups, steps, 4]
    assert packed.scales is not None
    if packed.format == "int4":
        codes = _nibbles(data, size).to(torch.int8) - 8
        factors = packed.scales[blocks, :, lanes]
        return StoredWeight("int4", codes, factors).values().bfloat16()
    if packed.format == "q8_0":
        codes = data.reshape(len(indices), -1).view(torch.int8)
    else:
        codes = _nibbles(data[:, :, : size // 8], size)
        if (bits := _PLANE_BITS.get(packed.format)) is not None:
            shifts = bits * torch.arange(size // 4, dtype=torch.uint8)[:, None]
            above = data[:, :, -1:] >> shifts & (1 << bits) - 1  # [rows, groups, size / 4, 4]
            codes = codes | above.reshape(codes.shape) << 4
    return (
        StoredWeight(packed.format, codes, *_read_scales(packed, groups, blocks, lanes))
        .values()
        .bfloat16()
    )


def _nibbles(pairs: Tensor, size: int) -> Tensor:
    """``[rows, groups, size / 8, 4]`` bytes as codes ``[rows, inputs]``."""
    both = torch.stack((pairs & 15, pairs >> 4), 3)  # [rows, groups, size / 8, 2, 4]
    return both.reshape(len(pairs), -1)


def _read_scales(
    packed: PackedWeight, groups: int, blocks: Tensor, lanes: Tensor
) -> tuple[Tensor | None, ...]:
    """The fields of a ``StoredWeight`` after its codes, of some rows."""
    assert packed.scales is not None
    if packed.format == "mxfp4":
        return None, packed.scales.view(-1, groups, LANES)[blocks, :, lanes]
    if packed.format == "q8_0":
        return (packed.scales.view(torch.float32).view(-1, groups, LANES)[blocks, :, lanes],)
    if packed.format == "uint4":
        both = packed.scales.view(-1, groups, 5 * LANES)[blocks]  # [rows, groups, bytes]
        scales = both[:, :, : 4 * LANES].contiguous().view(torch.float32)
        zeros = _of_lanes(both[:, :, 4 * LANES :], lanes)
        return _of_lanes(scales, lanes), None, None, zeros
    supers = packed.inputs // SUPER_INPUTS
    records = packed.scales.view(len(packed.scales), supers, -1)[blocks]  # [rows, supers, bytes]
    has_minimum, own = packed.format != "q6_k", groups // supers * LANES
    at, floats = 0, []
    for _ in range(1 + has_minimum):
        part = records[:, :, at : at + 4 * LANES].contiguous().view(torch.float32)
        floats.append(_of_lanes(part, lanes))
        at += 4 * LANES
    integers = []
    for _ in range(1 + has_minimum):
        part = records[:, :, at : at + own].reshape(len(records), groups, LANES)
        integers.append(_of_lanes(part, lanes))
        at += own
    if not has_minimum:
        return floats[0], integers[0].contiguous().view(torch.int8)
    return floats[0], integers[0], floats[1], integers[1]


def _of_lanes(values: Tensor, lanes: Tensor) -> Tensor:
    """``[rows, groups, 16]`` to ``[rows, groups]``: of each row its own lane."""
    return values[torch.arange(len(lanes)), :, lanes]


def _codes(weight: StoredWeight) -> Tensor:
    """Bytes ``[blocks, groups, steps, 16, 4]``: nibbles of two steps each, then further bits."""
    size = GROUP_INPUTS[weight.format]
    outputs, inputs = weight.codes.shape
    blocks, groups = outputs // LANES, inputs // size
    if weight.format == "q8_0":
        words = weight.codes.view(torch.uint8).view(blocks, LANES, groups, size // 4, 4)
        return _settled(words.permute(0, 2, 3, 1, 4))
    pairs = (weight.codes & 15).view(blocks, LANES, groups, size // 8, 2, 4)
    nibbles = (pairs[..., 0, :] | pairs[..., 1, :] << 4).permute(0, 2, 3, 1, 4)
    if (bits := _PLANE_BITS.get(weight.format)) is None:
        return _settled(nibbles)
    above = (weight.codes >> 4).view(blocks, LANES, groups, size // 4, 4)
    shifts = (bits * torch.arange(size // 4, dtype=torch.uint8))[:, None]
    plane = (above << shifts).sum(3, dtype=torch.uint8)  # [blocks, 16, groups, 4]
    return _settled(torch.cat((nibbles, plane.permute(0, 2, 1, 3).unsqueeze(2)), 2))


def _scales(weight: StoredWeight) -> Tensor:
    """Bytes ``[blocks, bytes]``."""
    if weight.factors is None:
        assert weight.scales is not None
        return _settled(_by_lanes(weight.scales).flatten(1))
    blocks = len(weight.codes) // LANES
    factors = _by_lanes(weight.factors).view(torch.uint8)  # [blocks, supers, 64]
    if weight.scales is None and weight.minimums is not None:  # uint4
        zeros = _by_lanes(weight.minimums)
        return _settled(torch.cat((factors, zeros), 2).reshape(blocks, -1))  # groups of 80 bytes
    if weight.scales is None:
        return _settled(factors.reshape(blocks, -1))
    supers = factors.shape[1]
    records = [factors]
    if weight.minimum_factors is not None:
        records.append(_by_lanes(weight.minimum_factors).view(torch.uint8))
    for integers in (weight.scales, weight.minimums):
        if integers is not None:
            records.append(_by_lanes(integers.view(torch.uint8)).reshape(blocks, supers, -1))
    return _settled(torch.cat(records, 2).reshape(blocks, -1))


def _by_lanes(values: Tensor) -> Tensor:
    """``[outputs, groups]`` as ``[blocks, groups, 16]``."""
    return values.view(-1, LANES, values.shape[1]).transpose(1, 2).contiguous()


def _settled(data: Tensor) -> Tensor:
    return fresh_tensor(data.shape, data.dtype).copy_(data)
