"""The KV blocks of one request."""

from __future__ import annotations

import msgspec

from twostroke.observability.frames.visibility import Visibility
from twostroke.observability.snapshot import BlockState

MAX_BLOCKS = 8192


class RequestBlocks(msgspec.Struct):
    """Its block table in order of position, a column each; empty once it has given them back.

    Attributes:
        ids: The blocks.
        holders: Tables that hold each, as far as the caller may see them.
        cached: 1 if a lookup by content can find the block.
        left_out: Blocks beyond those that are named.
        num_full: Blocks that it has filled so far, or had; 0 if nobody knows any more.
        num_kept: Those of them whose content is still in the cache.
    """

    block_size: int
    ids: list[int]
    holders: list[int]
    cached: list[int]
    left_out: int = 0
    num_full: int = 0
    num_kept: int = 0


def blocks_of(state: BlockState, request_id: str, visible: Visibility | None) -> RequestBlocks:
    """What one request holds, and what is left of what it held."""
    table = state.tables.get(request_id, [])
    shown = table[:MAX_BLOCKS]
    holders = dict.fromkeys(shown, 0)
    for other, blocks in state.tables.items():
        if visible is None or visible(other):
            for block in blocks:
                if block in holders:
                    holders[block] += 1
    cached = set(state.cached.values())
    keys = next((chain.keys for chain in state.chains if chain.request_id == request_id), [])
    return RequestBlocks(
        block_size=state.block_size,
        ids=shown,
        holders=[holders[block] for block in shown],
        cached=[int(block in cached) for block in shown],
        left_out=len(table) - len(shown),
        num_full=len(keys),
        num_kept=sum(key in state.cached for key in keys),
    )
