"""KV blocks as bytes: all tensors of a block, one after the other."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor


class BlockBytes:
    """Implements ``kv_tiers.transfers.BlockMemory`` on any tensors that are indexed by block.

    Args:
        tensors: Each [blocks, ...], contiguous, on one device; of all layers, with whatever belongs
            to a block (keys, values, scales). Their order and shapes are the format.

    Attributes:
        block_bytes: Bytes of one block in all of them.
        format: Names the types and shapes, so that bytes of another layout are not taken for these.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        # Views [blocks, bytes] of each tensor.
        self._parts = [tensor.flatten(1).view(torch.uint8) for tensor in tensors]
        self._device = tensors[0].device
        self._widths = [part.shape[1] for part in self._parts]
        self.block_bytes = sum(self._widths)
        layout = [f"{str(t.dtype).removeprefix('torch.')}{list(t.shape[1:])}" for t in tensors]
        digest = hashlib.blake2b(repr(layout).encode(), digest_size=8).hexdigest()
        self.format = f"{len(layout)} tensors {layout[0]} {digest}"

    def read(self, block_ids: Sequence[int]) -> list[memoryview]:
        indices = torch.tensor(block_ids, device=self._device)
        data = torch.empty(
            (len(block_ids), self.block_bytes), dtype=torch.uint8, device=self._device
        )  # [blocks, bytes]
        offset = 0
        for part, width in zip(self._parts, self._widths, strict=True):
            data[:, offset : offset + width] = part[indices]
            offset += width
        rows = data.cpu().numpy()
        # Copies, so that a block that stays for long does not keep the others' memory.
        return [memoryview(rows[index].tobytes()) for index in range(len(block_ids))]

    def write(self, block_ids: Sequence[int], blocks: Sequence[memoryview]) -> None:
        indices = torch.tensor(block_ids, device=self._device)
        data = torch.empty((len(blocks), self.block_bytes), dtype=torch.uint8)
        rows = data.numpy()
        for index, block in enumerate(blocks):
            memoryview(rows[index])[:] = block
        data = data.to(self._device)
        offset = 0
        for part, width in zip(self._parts, self._widths, strict=True):
            part.index_copy_(0, indices, data[:, offset : offset + width])
            offset += width
