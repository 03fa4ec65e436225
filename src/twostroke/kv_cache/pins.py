"""Pinned contents of the cache: whose they are, how many there may be, and when they end."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from twostroke.core.request import BlockKey
from twostroke.kv_cache.block_pool import BlockPool


class Pins:
    """Pins contents of a pool, at most half of its blocks.

    A tenant may pin as many as remain for others after it, so that none takes all; where there are
    no tenants, all of them. What two tenants pin counts for the first.
    """

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._owner: dict[BlockKey, str] = {}
        self._first_end = math.inf  # no pin ends before

    def pin(self, keys: Sequence[BlockKey], until: float, tenant: str = "") -> bool:
        """Evict these contents after all others, up to ``until``.

        Returns false, and changes nothing, if that would be too many.
        """
        new = [key for key in dict.fromkeys(keys) if key not in self._owner]
        own = sum(1 for owner in self._owner.values() if owner == tenant) + len(new)
        left = self._pool.num_blocks // 2 - len(self._owner) - len(new)
        if left < (own if tenant and new else 0):
            return False
        for key in keys:
            self._pool.pin(key, until)
        self._owner.update(dict.fromkeys(new, tenant))
        if keys:
            self._first_end = min(self._first_end, until)
        return True

    def expire(self, now: float) -> None:
        """End the pins that were to last until ``now`` or before."""
        if now < self._first_end:
            return
        pinned = self._pool.pinned
        for key in [key for key, until in pinned.items() if until <= now]:
            self._pool.unpin(key)
            self._owner.pop(key, None)
        self._first_end = min(pinned.values(), default=math.inf)

    def clear(self) -> None:
        """Forget all: the pool has."""
        self._owner.clear()
        self._first_end = math.inf

    def by_tenant(self) -> Counter[str]:
        """How many contents each tenant has pinned."""
        return Counter(self._owner.values())
