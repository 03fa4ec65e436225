"""One request's blocks, and what changes of them.

The layers of a model are in groups (``core.kv_groups``), and each group has a block for every
``block_size`` tokens: that of tokens ``i * block_size`` on has block index i. A request's tables
lie interleaved in one list: with G groups, the blocks of index i are entries ``i * G`` to
``i * G + G - 1``, and so are their keys in ``request.block_hashes``. An entry whose block was given
back is ``NO_BLOCK``, so that others keep their index.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

NO_BLOCK = -1


class Prefix(NamedTuple):
    """Keys and values that exist already: the first ``num_tokens`` tokens, in ``blocks``.

    ``looked_up``: whether the prefix cache was asked for them.
    """

    blocks: list[int]
    num_tokens: int
    looked_up: bool = False


class TableChange(NamedTuple):
    """What an allocation changed: the table from ``first_new_block`` on is ``new_block_ids``.

    ``block_copies`` are (source, target) pairs that the executor carries out before it writes.
    """

    first_new_block: int
    new_block_ids: list[int]
    block_copies: list[tuple[int, int]]


NO_PREFIX = Prefix([], 0)
UNCHANGED = TableChange(0, [], [])


class BlockTable(msgspec.Struct):
    """The blocks of all groups in order of block index.

    Attributes:
        num_indexed: Entries that are in the prefix cache's index.
        num_sent: Entries that the executor knows.
        num_writable: Slots below lie in blocks that the executor knows; those of them that are not
            computed yet lie in blocks that no other table holds.
        num_full: Block indices whose tokens are computed; ``commit`` has looked at them.
        num_dropped: For each group, how many blocks from index 0 on were given back.
        enters_index: Off once the prefix cache was cleared: no lookup would get past the blocks
            that are gone.
    """

    blocks: list[int]
    num_indexed: int
    num_full: int
    num_dropped: list[int]
    num_sent: int = 0
    num_writable: int = 0
    enters_index: bool = True


def num_leading_gaps(blocks: list[int]) -> int:
    """How many of the first entries have no block."""
    return next((i for i, block in enumerate(blocks) if block != NO_BLOCK), len(blocks))
