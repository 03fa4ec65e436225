"""Quantised weights to values, scales and zero points, in NumPy: what loading computes with.

Layouts, as published with the tools that write them:

* ``packed`` (compressed-tensors): along the inputs, ``32 / bits`` values a word, the first in its
  lowest bits, each half of the range too large to be unsigned; zero points likewise along the
  outputs.
* ``gptq``: the matrix transposed, packed along its inputs; zero points along the outputs.
* ``awq``: transposed, packed along its outputs, and in each word in the order 0 2 4 6 1 3 5 7; zero
  points likewise.
* ``nvfp4``: two values a byte, the first in its low half; a scale in E4M3 per 16 inputs.
* ``plain``: a value an element.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from twostroke.checkpoints.checkpoint import StoredTensor
from twostroke.checkpoints.quantised.arrays import E2M1, E4M3, Bytes, Floats, codes_of, floats_of
from twostroke.checkpoints.quantised.modules import QuantisedTensor

ReadBytes = Callable[[StoredTensor], Bytes]  # the bytes of a stored tensor, flat
MAX_ZERO = 127  # zero points that the kernels of 4 bits take, which is more than files have
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # which of eight outputs each place in a word holds


@dataclass(frozen=True, slots=True)
class ScaledValues:
    """A weight ``[outputs, inputs]``: each value less its group's zero, times its group's scale.

    Attributes:
        codes: uint8 ``[outputs, inputs]``: unsigned integers, or indices into ``table``.
        scales: float32 ``[outputs, groups]``.
        zeros: int16 ``[outputs, groups]``; ``None`` if all are ``middle``.
        middle: The zero of symmetric integers.
        group_of: The group of each input, ``[inputs]``.
        table: What codes stand for, where they are no integers.
    """

    codes: Bytes
    scales: Floats
    zeros: NDArray[np.int16] | None
    middle: int
    group_of: NDArray[np.int64]
    table: Floats | None

    def rows(self, begin: int, end: int) -> Floats:
        """Outputs ``begin`` to ``end``, float32."""
        codes, scales = self.codes[begin:end], self.scales[begin:end]
        values = codes.astype(np.float32) if self.table is None else self.table[codes]
        if self.table is None and self.zeros is None:
            values -= np.float32(self.middle)
        elif self.zeros is not None:
            _apply(np.subtract, values, self.zeros[begin:end], self.group_of)
        with np.errstate(all="ignore"):  # an infinite scale makes what it makes
            _apply(np.multiply, values, scales, self.group_of)
        return values

    def signed(self) -> NDArray[np.int8]:
        """Integers whose zero is in the middle, ``[outputs, inputs]``."""
        return self.codes.view(np.int8) - np.array(self.middle).astype(np.int8)


def _apply(
    operation: np.ufunc,
    values: Floats,
    of_groups: Floats | NDArray[np.int16],
    group_of: NDArray[np.int64],
) -> None:
    """Change values by what belongs to their group; fast where groups are equal and in order."""
    inputs, groups = len(group_of), of_groups.shape[1]
    size = inputs // groups
    if size * groups == inputs and np.array_equal(group_of, np.arange(inputs) // size):
        in_groups = values.reshape(len(values), groups, size)
        operation(in_groups, of_groups[:, :, None], out=in_groups, casting="same_kind")
    else:
        operation(values, of_groups[:, group_of], out=values, casting="same_kind")


def scaled_values(weight: QuantisedTensor, read: ReadBytes) -> ScaledValues:
    """Unpack a weight. Raises ModelLoadError if an input says a group that is not there."""
    scheme, (outputs, inputs) = weight.scheme, weight.shape
    table = None if scheme.number == "int" else E4M3 if scheme.bits == 8 else E2M1
    return ScaledValues(
        _codes(weight, read)[:outputs, :inputs],
        _scales(weight, read),
        _zeros(weight, read),
        1 << (scheme.bits - 1),
        _group_of(weight, read),
        table,
    )


def held_by(weight: QuantisedTensor, read: ReadBytes, group: int) -> str:
    """The compiled kernels' form that holds it exactly: ``int4``, ``uint4``, ``int8``, or none.

    Of its tensors, only zero points and the order of its inputs are read.

    Args:
        group: Inputs that share a scale in the kernels' 4 bits; all forms have whole groups.
    """
    scheme, inputs = weight.scheme, weight.shape[1]
    if scheme.number != "int" or inputs % group or scheme.bits not in (4, 8):
        return ""
    size = scheme.group if scheme.strategy == "group" else inputs
    if scheme.strategy == "block" or (scheme.bits == 4 and size % group):
        return ""
    if scheme.bits == 8 and weight.groups > 1:
        return ""
    if not np.array_equal(_group_of(weight, read), np.arange(inputs) // size):
        return ""
    zeros = _zeros(weight, read)
    if zeros is None or (zeros == 1 << (scheme.bits - 1)).all():
        return f"int{scheme.bits}"
    fits = scheme.bits == 4 and zeros.min() >= 0 and zeros.max() <= MAX_ZERO
    return "uint4" if fits else ""


def _unpack_words(words: NDArray[np.signedinteger | np.uint8], bits: int) -> Bytes:
    """Words ``[rows, n]`` as ``[rows, n * 32 / bits]`` values, lowest bits first."""
    octets = np.ascontiguousarray(words).astype("<i4", copy=False).view(np.uint8)
    return _split_bytes(octets, bits)


def _split_bytes(octets: Bytes, bits: int) -> Bytes:
    if bits == 8:
        return octets
    values = np.empty((*octets.shape, 8 // bits), np.uint8)
    for place in range(8 // bits):
        part = octets >> np.uint8(bits * place)
        np.bitwise_and(part, np.uint8((1 << bits) - 1), out=values[:, :, place])
    return values.reshape(len(octets), -1)


def _unpack_awq(words: NDArray[np.signedinteger | np.uint8]) -> Bytes:
    """AWQ's words ``[n, outputs / 8]`` as ``[outputs, n]`` values."""
    rows = np.ascontiguousarray(words.T)  # [outputs / 8, n]
    values = np.empty((len(rows), 8, rows.shape[1]), np.uint8)
    for place, output in enumerate(_AWQ_ORDER):
        values[:, output] = rows >> 4 * place & 15
    return values.reshape(-1, rows.shape[1])


def _codes(weight: QuantisedTensor, read: ReadBytes) -> Bytes:
    scheme, stored = weight.scheme, codes_of(weight.values, read(weight.values))
    if scheme.layout == "packed":
        return _unpack_words(stored, scheme.bits)
    if scheme.layout == "gptq":
        return _unpack_words(stored.T, scheme.bits)
    if scheme.layout == "awq":
        return _unpack_awq(stored)
    if scheme.layout == "nvfp4":
        return _split_bytes(stored.view(np.uint8), 4)
    octets = stored.view(np.uint8)
    return octets ^ np.uint8(128) if scheme.number == "int" else octets


def _scales(weight: QuantisedTensor, read: ReadBytes) -> Floats:
    scheme, outputs = weight.scheme, weight.shape[0]
    part = weight.parts["scale"]
    scales = floats_of(part, read(part))
    if scheme.layout in ("gptq", "awq"):
        scales = scales.T
    if scheme.strategy == "block":
        scales = np.repeat(scales, min(scheme.block[0], outputs), axis=0)[:outputs]
    if (own := weight.parts.get("global_scale")) is not None:
        overall = floats_of(own, read(own)).reshape(1, 1)
        with np.errstate(all="ignore"):
            scales = scales / overall if scheme.divides else scales * overall
    if scheme.strategy == "tensor":
        return np.broadcast_to(scales.reshape(1, 1), (outputs, 1))
    return scales.reshape(outputs, -1)


def _zeros(weight: QuantisedTensor, read: ReadBytes) -> NDArray[np.int16] | None:
    scheme, part, outputs = weight.scheme, weight.parts.get("zeros"), weight.shape[0]
    if part is None:
        return None
    stored = codes_of(part, read(part))
    if scheme.layout == "gptq":
        zeros = _unpack_words(stored, scheme.bits).astype(np.int16).T + scheme.stored_zero
    elif scheme.layout == "awq":
        zeros = _unpack_awq(stored).astype(np.int16)
    elif part.format == "I32":
        zeros = _unpack_words(stored.T, scheme.bits).astype(np.int16).T
    else:
        zeros = stored.reshape(-1, stored.shape[-1] if stored.ndim == 2 else 1).astype(np.int16)
        zeros = zeros + np.int16(1 << (scheme.bits - 1))
        zeros = np.broadcast_to(zeros, (outputs, zeros.shape[1])) if len(zeros) == 1 else zeros
    if scheme.strategy == "block":
        zeros = np.repeat(zeros, min(scheme.block[0], outputs), axis=0)
    return np.ascontiguousarray(zeros[:outputs], np.int16)


def _group_of(weight: QuantisedTensor, read: ReadBytes) -> NDArray[np.int64]:
    scheme, inputs, part = weight.scheme, weight.shape[1], weight.parts.get("order")
    if part is None or weight.groups == 1:
        size = {"group": scheme.group, "block": scheme.block[1]}.get(scheme.strategy, inputs)
        return np.arange(inputs) // size
    order = codes_of(part, read(part)).astype(np.int64)
    if (order == -1).all():  # as compressed-tensors writes where there is none
        return np.arange(inputs) // scheme.group
    if order.min() < 0 or order.max() >= weight.groups:
        raise weight.refuse("order", f"names a group that is not one of {weight.groups}")
    return order
