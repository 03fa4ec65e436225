"""What a prompt begins with, as a few numbers: enough to see which requests share how much."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from twostroke.core.request import BlockKey

# A key is cut to as many bytes: JSON numbers of most readers are exact up to 53 bits.
KEY_BYTES = 6


def prefix_marks(num_blocks: int) -> Iterator[int]:
    """Counts of blocks at which a prefix is named: 1, 2, 3, 4, 6, 8, 12, 16 ..."""
    mark = 1
    while mark <= num_blocks:
        yield mark
        # From a power of two half as much again, then on to the next power.
        mark += max(1, mark // 2 if mark & (mark - 1) == 0 else mark // 3)


def prefix_keys(keys: Sequence[BlockKey]) -> list[int]:
    """The keys of the blocks at ``prefix_marks``, as numbers."""
    return [_number(keys[mark - 1]) for mark in prefix_marks(len(keys))]


def _number(key: BlockKey) -> int:
    if isinstance(key, int):
        return key % (1 << 8 * KEY_BYTES)
    return int.from_bytes(key[:KEY_BYTES], "big")
