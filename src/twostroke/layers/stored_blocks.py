"""Weights as a GGUF file has them, until a compiled kernel puts their blocks in its own order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from twostroke.kernels.library import FORMATS, GROUP, LANES, Library
from twostroke.layers.packing import PackedWeight
from twostroke.layers.pages import fresh_tensor
from twostroke.layers.stored_weights import GROUP_INPUTS, SUPER_INPUTS, StoredWeight, join_weights

# By format, steps of four inputs that a group takes, and bytes of scales of 16 outputs by how many
# inputs; ``kernels/cpp/linear/stored.hpp`` describes both.
_STEPS = {"int4": 4, "q8_0": 8, "q4_k": 4, "q5_k": 5, "q6_k": 3, "mxfp4": 4}
_SCALES = {
    "int4": (4 * LANES, GROUP),
    "q8_0": (4 * LANES, GROUP),
    "q4_k": (24 * LANES, SUPER_INPUTS),
    "q5_k": (24 * LANES, SUPER_INPUTS),
    "q6_k": (20 * LANES, SUPER_INPUTS),
    "mxfp4": (LANES, GROUP),
}


@dataclass(frozen=True, slots=True)
class StoredBlocks:
    """A weight ``[outputs, inputs]``, in whole blocks of its file.

    Attributes:
        format: The kernels' name for it.
        rows: ``[outputs, bytes]``, the blocks of a row one after the other.
        library: The kernels that read them.
    """

    format: str
    rows: NDArray[np.uint8]
    inputs: int
    library: Library

    @property
    def outputs(self) -> int:
        return len(self.rows)

    def reordered(self, order: Tensor) -> StoredBlocks:
        """Take rows in another order."""
        return replace(self, rows=self.rows[order.numpy()])

    def inputs_between(self, first: int, end: int) -> StoredBlocks:
        """Some of the columns, from one block to another."""
        own = slice(*(at * self.rows.shape[1] // self.inputs for at in (first, end)))
        return replace(self, rows=self.rows[:, own], inputs=end - first)

    def packed(self) -> PackedWeight:
        """The weight as the kernels read it. Outputs are padded to a multiple of 16 with zeros."""
        size, blocks = GROUP_INPUTS[self.format], -(-self.outputs // LANES)
        shape = (blocks, self.inputs // size, _STEPS[self.format], LANES, 4)
        scale_bytes, of_inputs = _SCALES[self.format]
        data = fresh_tensor(shape, torch.uint8)
        scales = fresh_tensor((blocks, self.inputs // of_inputs * scale_bytes), torch.uint8)
        rows = np.ascontiguousarray(self.rows)
        self.library.pack_stored(
            FORMATS[self.format],
            rows.ctypes.data,
            *(self.outputs, self.inputs, data.data_ptr(), scales.data_ptr()),
        )
        if self.format == "int4":
            scales = scales.view(torch.float32).view(blocks, -1, LANES)
        return PackedWeight(self.format, data, scales, self.outputs, self.inputs)


# What stays as it is stored: whole blocks of a GGUF file, or codes and scales apart.
KeptWeight = StoredBlocks | StoredWeight


def join_kept(parts: Sequence[KeptWeight]) -> KeptWeight:
    """One after the other; all are of the same format and as wide."""
    if len(parts) == 1:
        return parts[0]
    blocks = [part for part in parts if isinstance(part, StoredBlocks)]
    if len(blocks) == len(parts):
        return replace(blocks[0], rows=np.concatenate([part.rows for part in blocks]))
    return join_weights([part for part in parts if isinstance(part, StoredWeight)])
