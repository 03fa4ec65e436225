"""The seam of everything that follows what the KV cache holds: tiers, and streams of KV events."""

from __future__ import annotations

from typing import Protocol

from twostroke.core.request import BlockKey, Request


class CacheWatcher(Protocol):
    """Is told of each change of the prefix cache's index, in order, while it happens.

    It may read everything it is given, and changes nothing of the cache.
    """

    def on_stored(self, request: Request, first: int, blocks: list[int]) -> None:
        """Blocks ``first ..`` of a request are found by their content now.

        ``blocks`` are their ids; ``request.block_hashes[first:]`` begins with their keys. What the
        index held already is not reported again.
        """

    def on_removed(self, block: int, key: BlockKey, *, is_wrong: bool = False) -> None:
        """A block is about to be used for something else.

        Args:
            is_wrong: Its content may be wrong, and must be found nowhere.
        """

    def on_found(self, request: Request, num_blocks: int) -> None:
        """A request is admitted with its first blocks from the cache: they need no computing."""

    def on_cleared(self) -> None:
        """The index was emptied; no block is reported singly."""
