"""Explains the prefix hits of models with recurrent layers: how long, and why not longer."""

from __future__ import annotations

from collections import OrderedDict

from twostroke.core.prefix_hit import PrefixEnd, PrefixHit
from twostroke.core.request import BlockKey, Request
from twostroke.kv_cache.manager import KVCacheManager
from twostroke.kv_cache.prefix_needs import PrefixNeeds
from twostroke.kv_cache.states import Loss
from twostroke.kv_cache.tier_directory import TierDirectory
from twostroke.kv_cache.tiered_prefix import longest_in_tiers

# How many of the latest evicted blocks and checkpoints are remembered.
MAX_REMEMBERED = 2**16


class HitExplainer:
    """Implements ``CacheWatcher`` and ``CheckpointWatcher``, and notes on each request that is
    admitted what it found.

    Args:
        kv: Watched from here on; its model has recurrent layers.
        tiers: What lies there might have been loaded.
    """

    def __init__(self, kv: KVCacheManager, tiers: TierDirectory) -> None:
        self._kv, self._tiers = kv, tiers
        self._needs = PrefixNeeds(kv.groups, kv.block_size)
        self._gone_blocks, self._gone_checkpoints = _Remembered(), _Remembered()
        kv.watch(self)
        kv.states.watch(self)

    def on_checkpoint(self, key: BlockKey, slot: int, *, lasts: bool) -> None:
        """Note nothing: lookups find a stored checkpoint themselves."""

    def on_checkpoint_lost(self, key: BlockKey, slot: int, loss: Loss) -> None:
        if loss is Loss.EVICTED:
            self._gone_checkpoints.add(key)

    def on_stored(self, request: Request, first: int, blocks: list[int]) -> None:
        """What was evicted may come back: lookups find it before this is asked."""

    def on_removed(self, block: int, key: BlockKey, *, is_wrong: bool = False) -> None:
        if not is_wrong:
            self._gone_blocks.add(key)

    def on_found(self, request: Request, num_blocks: int) -> None:
        request.prefix_hit = self.explain(request, num_blocks // self._kv.groups.count)

    def on_cleared(self) -> None:
        self._gone_blocks.clear()
        self._gone_checkpoints.clear()

    def explain(self, request: Request, length: int) -> PrefixHit:
        """Why a hit of ``length`` blocks, which has just been looked up, was not longer."""
        size, count, find = self._kv.block_size, self._kv.groups.count, self._kv.pool.find
        longest = (request.num_tokens - 1) // size
        keys = request.block_hashes[: longest * count]
        with_blocks = self._needs.longest(keys, self._is_somewhere)
        following = keys[length * count : (length + 1) * count]
        if longest_in_tiers(self._kv, keys, self._is_in_tier) > length:
            end = PrefixEnd.NOT_LOADED
        elif with_blocks > length:
            states = keys[length * count : with_blocks * count : count]
            evicted = any(key in self._gone_checkpoints for key in states)
            end = PrefixEnd.CHECKPOINT_EVICTED if evicted else PrefixEnd.NO_CHECKPOINT
        elif length == longest:
            end = PrefixEnd.WHOLE_PROMPT
        elif any(find(key) is None and key in self._gone_blocks for key in following):
            end = PrefixEnd.BLOCK_EVICTED
        else:
            is_new = length == 0 and request.spec.cache_salt
            end = PrefixEnd.NEW_SALT if is_new else PrefixEnd.FIRST_TIME
        return PrefixHit(length * size, max(length, with_blocks) * size, end)

    def _is_in_tier(self, key: BlockKey) -> bool:
        return self._tiers.find(key) is not None

    def _is_somewhere(self, key: BlockKey) -> bool:
        return self._kv.pool.find(key) is not None or self._is_in_tier(key)


class _Remembered:
    """The latest keys that were added."""

    def __init__(self) -> None:
        self._keys: OrderedDict[BlockKey, None] = OrderedDict()

    def __contains__(self, key: BlockKey) -> bool:
        return key in self._keys

    def add(self, key: BlockKey) -> None:
        self._keys[key] = None
        self._keys.move_to_end(key)
        if len(self._keys) > MAX_REMEMBERED:
            self._keys.popitem(last=False)

    def clear(self) -> None:
        self._keys.clear()
