"""How a model's layers share the blocks of its KV cache, and how many blocks a request needs."""

from __future__ import annotations

from dataclasses import dataclass

from twostroke.core.request import BlockKey


@dataclass(frozen=True, slots=True)
class KVGroups:
    """Layers that see alike are a group; one kind may make several, so that all groups are equal.

    A block holds the keys and values of ``block_size`` tokens in the layers of one group, and every
    group has a block table of its own. All blocks have equal bytes and come from one pool.

    Attributes:
        windows: For each group, how many of the latest tokens its layers see; ``None`` is all.
            Groups that see all come first.
        max_step_tokens: Most tokens of one request in a step: as many lie in the cache beside a
            window, while a chunk is computed. 0 is any number.
    """

    windows: tuple[int | None, ...] = (None,)
    max_step_tokens: int = 0

    @property
    def count(self) -> int:
        return len(self.windows)

    @property
    def has_windows(self) -> bool:
        return self.windows[-1] is not None

    def first_seen(self, window: int | None, num_full: int, block_size: int) -> int:
        """The first block that a request still needs whose first ``num_full`` blocks are full.

        Counted from the last full block: there a request can go on that was swapped out, or that
        shares the prefix. That keeps one block more than the window needs, at most.
        """
        if window is None:
            return 0
        return max(0, num_full * block_size - window + 1) // block_size

    def most_in_window(self, window: int, num_tokens: int, block_size: int) -> int:
        """Most blocks of a windowed group at once, while ``num_tokens`` tokens are computed."""
        chunk = min(num_tokens, self.max_step_tokens) if self.max_step_tokens else num_tokens
        return -(-(window - 1) // block_size) + -(-(block_size - 1 + chunk) // block_size)

    def missing_in_window(
        self,
        window: int,
        *,
        first: int,
        num_held: int,
        num_known: int,
        num_tokens: int,
        block_size: int,
    ) -> int:
        """Most blocks that a windowed group takes beside those from ``first`` to ``num_held``.

        While ``num_tokens`` tokens are computed, of a text of ``num_known`` blocks.
        """
        max_blocks = self.most_in_window(window, num_tokens, block_size)
        return max(0, min(num_known - first, max_blocks) - (num_held - first))

    def most_blocks(self, num_tokens: int, block_size: int) -> int:
        """Most blocks that a request of ``num_tokens`` tokens holds at once."""
        return self._blocks(num_tokens, num_tokens, block_size)

    def longest_request(self, num_blocks: int, block_size: int) -> int | None:
        """Tokens of the longest request that ``num_blocks`` hold; ``None``: there is no longest."""
        if not self.has_windows:
            return num_blocks // self.count * block_size
        low, high = 0, (num_blocks + 1) * block_size  # a block too many, if anything grows
        if self.most_blocks(high, block_size) <= num_blocks:
            return None
        while low < high - 1:
            middle = (low + high) // 2
            if self.most_blocks(middle, block_size) <= num_blocks:
                low = middle
            else:
                high = middle
        return low // block_size * block_size

    def num_requests(self, num_blocks: int, num_tokens: int, block_size: int) -> int:
        """How many requests of ``num_tokens`` tokens fit at once.

        A step's chunks are of ``max_step_tokens`` together, so their room counts once.
        """
        most = self.most_blocks(num_tokens, block_size)
        if not self.has_windows:
            return num_blocks // most
        while_decoding = self._blocks(num_tokens, 1, block_size)
        return max(0, num_blocks - most + while_decoding) // while_decoding

    def _blocks(self, num_tokens: int, chunk: int, block_size: int) -> int:
        all_blocks = -(-num_tokens // block_size)
        return sum(
            all_blocks
            if window is None
            else self.missing_in_window(
                window,
                first=0,
                num_held=0,
                num_known=all_blocks,
                num_tokens=chunk,
                block_size=block_size,
            )
            for window in self.windows
        )


ONE_GROUP = KVGroups()


def keys_of_groups(key: BlockKey, num_groups: int) -> list[BlockKey]:
    """The keys of the blocks of one block index, one for each group of layers."""
    if num_groups == 1:
        return [key]
    if isinstance(key, int):
        return [key * num_groups + group for group in range(num_groups)]
    return [key + bytes([group]) for group in range(num_groups)]


def group_of(key: BlockKey, num_groups: int) -> int:
    """Which group's layers a block holds, by its key."""
    return 0 if num_groups == 1 else key % num_groups if isinstance(key, int) else key[-1]


# Bytes that the key of a part of a recurrent state has more than that of a block.
STATE_KEY_BYTES = 3


def state_key(key: BlockKey, part: int = 0) -> BlockKey:
    """The key of the state after a block, wherever it must not be taken for the block's own.

    Args:
        part: A state lies in tiers in parts of a block's size.
    """
    if isinstance(key, int):
        return -1 - (key << 16 | part)
    return key + b"s" + part.to_bytes(2, "little")


def is_state_key(key: BlockKey) -> bool:
    """Whether it is one of ``state_key``; blocks' own are 16 bytes, or 17 with groups."""
    return key < 0 if isinstance(key, int) else len(key) > 17
