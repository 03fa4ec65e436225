"""What a prefix needs: every block of layers that see all, the last window's of the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from twostroke.core.kv_groups import KVGroups
from twostroke.core.request import BlockKey


class PrefixNeeds:
    """Which entries of a block table a prefix of some length is made of.

    Args:
        groups: The model's.
        block_size: Tokens per block.
    """

    def __init__(self, groups: KVGroups, block_size: int) -> None:
        self._groups, self._size = groups, block_size
        windows = list(enumerate(groups.windows))
        self.whole = [group for group, window in windows if window is None]
        self.windows = [(group, window) for group, window in windows if window is not None]

    def entries(self, length: int) -> list[int]:
        """The entries that a prefix of ``length`` block indices needs, in order."""
        count = self._groups.count
        if not self.windows:
            return list(range(length * count))
        return sorted(
            block_index * count + group
            for group, window in enumerate(self._groups.windows)
            for block_index in range(self._groups.first_seen(window, length, self._size), length)
        )

    def longest(self, keys: Sequence[BlockKey], has: Callable[[BlockKey], bool]) -> int:
        """Length, in block indices, of the longest prefix whose needed blocks are all there.

        First the groups that see everything bound it. Then the ends are tried from there
        downwards: a missing block of a window rules out all ends that would see it.

        Args:
            keys: The keys of all entries.
        """
        count = self._groups.count
        end = len(keys) // count
        for group in self.whole:
            for block_index in range(end):
                if not has(keys[block_index * count + group]):
                    end = block_index
                    break
        if not self.windows:
            return end
        block_index, firsts = end, self._firsts(end)
        while block_index > min(firsts):
            block_index -= 1
            if any(
                block_index >= firsts[group] and not has(keys[block_index * count + group])
                for group, _ in self.windows
            ):
                end, firsts = block_index, self._firsts(block_index)
        return end

    def longest_to_a_state(
        self,
        keys: Sequence[BlockKey],
        has: Callable[[BlockKey], bool],
        has_state: Callable[[BlockKey], bool],
    ) -> int:
        """The longest prefix at whose end the state of recurrent layers exists, too.

        Args:
            has_state: Whether there is one after a block, by the key of the first group's.
        """
        count = self._groups.count
        length = len(keys) // count
        while length:
            end = length = self.longest(keys[: length * count], has)
            while length and not has_state(keys[(length - 1) * count]):
                length -= 1
            if length == end:
                break
        return length

    def _firsts(self, num_full: int) -> list[int]:
        """For each group, the first block index that is needed after ``num_full`` full ones.

        That of a group without a window counts as reached: it has been looked at as a whole.
        """
        first_seen = self._groups.first_seen
        return [
            num_full if window is None else first_seen(window, num_full, self._size)
            for window in self._groups.windows
        ]
