"""KV blocks as bytes: all tensors of a block, one after the other; and states beside them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from itertools import accumulate

import torch
from torch import Tensor

from twostroke.kv_cache.state_room import count_state_parts, part_bytes
from twostroke.runtime.caches.host_copies import host_copies
from twostroke.runtime.device import on_device


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
        self._copies = host_copies(self._device)
        self._widths = [part.shape[1] for part in self._parts]
        self.block_bytes = sum(self._widths)
        layout = [f"{str(t.dtype).removeprefix('torch.')}{list(t.shape[1:])}" for t in tensors]
        digest = hashlib.blake2b(repr(layout).encode(), digest_size=8).hexdigest()
        self.format = f"{len(layout)} tensors {layout[0]} {digest}"

    def read(self, block_ids: Sequence[int]) -> list[memoryview]:
        indices = on_device(block_ids, self._device)
        data = torch.empty(
            (len(block_ids), self.block_bytes), dtype=torch.uint8, device=self._device
        )  # [blocks, bytes]
        offset = 0
        for part, width in zip(self._parts, self._widths, strict=True):
            data[:, offset : offset + width] = part[indices]
            offset += width
        rows = self._copies.to_host(data).numpy()
        # Copies, so that a block that stays for long does not keep the others' memory.
        return [memoryview(rows[index].tobytes()) for index in range(len(block_ids))]

    def write(self, block_ids: Sequence[int], blocks: Sequence[memoryview]) -> None:
        indices = on_device(block_ids, self._device)
        data = self._copies.room(len(blocks), self.block_bytes)
        rows = data.numpy()
        for index, block in enumerate(blocks):
            memoryview(rows[index])[:] = block
        data = self._copies.to_device(data)
        offset = 0
        for part, width in zip(self._parts, self._widths, strict=True):
            part.index_copy_(0, indices, data[:, offset : offset + width])
            offset += width


class BlockAndStateBytes:
    """Blocks with the states of recurrent layers, in parts of a block's size.

    The parts of slot s are the numbers ``num_blocks + s * num_parts`` and those after it; the last
    one ends in bytes that mean nothing.

    Args:
        blocks: The bytes of the KV cache's blocks; ``None``: they hold nothing.
        num_blocks: How many there are.
        states: Each [slots, ...], contiguous, of all layers.
    """

    def __init__(
        self, blocks: BlockBytes | None, num_blocks: int, states: Sequence[Tensor]
    ) -> None:
        self._blocks, self._num_blocks = blocks, num_blocks
        # Views [slots, bytes] of each tensor, and where each begins in the bytes of a state.
        self._parts = [tensor.flatten(1).view(torch.uint8) for tensor in states]
        ends = list(accumulate(part.shape[1] for part in self._parts))
        self._starts = [0, *ends[:-1]]
        in_block = 0 if blocks is None else blocks.block_bytes
        self.block_bytes = part_bytes(ends[-1], in_block)
        self.num_parts = count_state_parts(ends[-1], in_block)
        layout = [f"{tensor.dtype}{list(tensor.shape[1:])}" for tensor in states]
        digest = hashlib.blake2b(repr(layout).encode(), digest_size=8).hexdigest()
        self.format = f"{blocks.format if blocks else 'no tensors'}, states {digest}"

    def read(self, block_ids: Sequence[int]) -> list[memoryview]:
        kv_blocks = [block for block in block_ids if block < self._num_blocks]
        read = iter(self._blocks.read(kv_blocks) if self._blocks and kv_blocks else ())
        return [
            next(read) if block < self._num_blocks else self._read_part(block - self._num_blocks)
            for block in block_ids
        ]

    def write(self, block_ids: Sequence[int], blocks: Sequence[memoryview]) -> None:
        pairs = list(zip(block_ids, blocks, strict=True))
        kv_blocks = [(block, data) for block, data in pairs if block < self._num_blocks]
        if self._blocks and kv_blocks:
            self._blocks.write(*zip(*kv_blocks))
        for block, data in pairs:
            if block >= self._num_blocks:
                self._write_part(block - self._num_blocks, data)

    def _read_part(self, part: int) -> memoryview:
        data = bytearray(self.block_bytes)
        for view, first, last in self._pieces(part):
            data[first:last] = view.cpu().numpy().tobytes()
        return memoryview(bytes(data))

    def _write_part(self, part: int, data: memoryview) -> None:
        for view, first, last in self._pieces(part):
            view.copy_(torch.frombuffer(bytearray(data[first:last]), dtype=torch.uint8))

    def _pieces(self, part: int) -> Iterator[tuple[Tensor, int, int]]:
        """The tensors that a part has bytes of: views [bytes], and which of the part's they are."""
        slot, number = divmod(part, self.num_parts)
        begin, end = number * self.block_bytes, (number + 1) * self.block_bytes
        for tensor, start in zip(self._parts, self._starts, strict=True):
            first, last = max(begin, start), min(end, start + tensor.shape[1])
            if first < last:
                yield tensor[slot, first - start : last - start], first - begin, last - begin
