"""What prefix lookups find, known away from the cache: by its changes, which cross as messages."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from twostroke.core.kv_groups import KVGroups, state_key
from twostroke.core.request import BlockKey, Request
from twostroke.kv_cache.block_hash import extend_block_hashes
from twostroke.kv_cache.block_pool import BlockPool
from twostroke.kv_cache.prefix_needs import PrefixNeeds
from twostroke.kv_cache.states import Loss


class IndexChanges(msgspec.Struct, frozen=True):
    """Contents that are found from now on, and such that no longer are; states by ``state_key``.

    Attributes:
        cleared: Before these all were forgotten.
    """

    stored: list[BlockKey] = []
    removed: list[BlockKey] = []
    cleared: bool = False


def cached_keys(blocks: BlockPool, states: BlockPool) -> list[BlockKey]:
    """All that lookups find in a cache's pools, as its watchers were told of it."""
    return [*blocks.cached(), *map(state_key, states.cached())]


class IndexLog:
    """A ``CacheWatcher`` and ``CheckpointWatcher`` that collects changes until they are taken."""

    def __init__(self) -> None:
        self._is_found: dict[BlockKey, bool] = {}
        self._cleared = False

    def on_stored(self, request: Request, first: int, blocks: list[int]) -> None:
        keys = request.block_hashes[first : first + len(blocks)]
        self._is_found.update(dict.fromkeys(keys, True))

    def on_removed(self, block: int, key: BlockKey, *, is_wrong: bool = False) -> None:
        self._is_found[key] = False

    def on_checkpoint(self, key: BlockKey, slot: int, *, lasts: bool) -> None:
        self._is_found[state_key(key)] = True

    def on_checkpoint_lost(self, key: BlockKey, slot: int, loss: Loss) -> None:
        self._is_found[state_key(key)] = False

    def on_found(self, request: Request, num_blocks: int) -> None:
        """Nothing has changed."""

    def on_cleared(self) -> None:
        self._is_found, self._cleared = {}, True

    def begin_again(self, keys: Iterable[BlockKey]) -> None:
        """Tell a new reader of all that is found now: ``keys``."""
        self._is_found, self._cleared = dict.fromkeys(keys, True), True

    def take(self) -> IndexChanges | None:
        """What has changed since this was called last, if anything has."""
        is_found, cleared = self._is_found, self._cleared
        if not (is_found or cleared):
            return None
        self._is_found, self._cleared = {}, False
        return IndexChanges(
            [key for key, found in is_found.items() if found],
            [key for key, found in is_found.items() if not found],
            cleared,
        )


class PrefixMirror:
    """The contents that a cache's index holds. One thread applies changes, any thread asks.

    Args:
        groups: The groups of the model's layers.
        model_id: Part of each key.
        has_states: Whether the model has recurrent layers, so that a hit ends at a state.

    Attributes:
        sizes: What the keys of a prompt depend on beside itself: a request is for mirrors of equal
            ones.
    """

    def __init__(
        self, block_size: int, groups: KVGroups, model_id: str, *, has_states: bool = False
    ) -> None:
        self._has_states = has_states
        self.sizes = block_size, model_id, groups.count
        self._needs = PrefixNeeds(groups, block_size)
        self._keys: set[BlockKey] = set()

    def apply(self, changes: IndexChanges) -> None:
        if changes.cleared:
            self._keys.clear()
        self._keys.difference_update(changes.removed)
        self._keys.update(changes.stored)

    def num_cached(self, request: Request) -> int:
        """Tokens of a new request's prompt that the cache held at the latest change."""
        if not request.reads_prefix_cache:
            return 0
        block_size, _, num_groups = self.sizes
        count = (request.num_tokens - 1) // block_size
        keys = extend_block_hashes(request, count, *self.sizes)[: count * num_groups]
        has = self._keys.__contains__
        if not self._has_states:
            return self._needs.longest(keys, has) * block_size
        length = self._needs.longest_to_a_state(keys, has, lambda key: has(state_key(key)))
        return length * block_size
