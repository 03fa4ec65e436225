"""Pinned contents of the cache: whose they are, how many there may be, and when they end."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from twostroke.core.request import BlockKey
from twostroke.kv_cache.block_pool import BlockPool


class _PoolPins:
    """The pins of one pool; see ``Pins``."""

    def __init__(self, pool: BlockPool) -> None:
        self.pool = pool
        self.owner: dict[BlockKey, str] = {}
        self._first_end = math.inf  # no pin ends before

    def allows(self, keys: Sequence[BlockKey], tenant: str) -> bool:
        """Whether a tenant may pin these, too."""
        new = self._new(keys)
        own = sum(1 for owner in self.owner.values() if owner == tenant) + len(new)
        left = self.pool.num_blocks // 2 - len(self.owner) - len(new)
        return left >= (own if tenant and new else 0)

    def pin(self, keys: Sequence[BlockKey], until: float, tenant: str) -> None:
        self.owner.update(dict.fromkeys(self._new(keys), tenant))
        for key in keys:
            self.pool.pin(key, until)
        if keys:
            self._first_end = min(self._first_end, until)

    def expire(self, now: float) -> None:
        if now < self._first_end:
            return
        pinned = self.pool.pinned
        for key in [key for key, until in pinned.items() if until <= now]:
            self.pool.unpin(key)
            self.owner.pop(key, None)
        self._first_end = min(pinned.values(), default=math.inf)

    def clear(self) -> None:
        self.owner.clear()
        self._first_end = math.inf

    def _new(self, keys: Sequence[BlockKey]) -> list[BlockKey]:
        return [key for key in dict.fromkeys(keys) if key not in self.owner]


class Pins:
    """Pins contents of a pool, at most half of its blocks.

    A tenant may pin as many as remain for others after it, so that none takes all; where there are
    no tenants, all of them. What two tenants pin counts for the first.

    Args:
        states: Slots of recurrent states, of which the same holds.
    """

    def __init__(self, pool: BlockPool, states: BlockPool | None = None) -> None:
        self._blocks = _PoolPins(pool)
        self._states = _PoolPins(BlockPool(0) if states is None else states)

    def pin(
        self,
        keys: Sequence[BlockKey],
        until: float,
        tenant: str = "",
        states: Sequence[BlockKey] = (),
    ) -> bool:
        """Evict these contents after all others, up to ``until``.

        Returns false, and changes nothing, if that would be too many.

        Args:
            states: Keys of blocks after which states are kept, too.
        """
        if not (self._blocks.allows(keys, tenant) and self._states.allows(states, tenant)):
            return False
        self._blocks.pin(keys, until, tenant)
        self._states.pin(states, until, tenant)
        return True

    def expire(self, now: float) -> None:
        """End the pins that were to last until ``now`` or before."""
        self._blocks.expire(now)
        self._states.expire(now)

    def clear(self) -> None:
        """Forget all: the pools have."""
        self._blocks.clear()
        self._states.clear()

    def by_tenant(self) -> Counter[str]:
        """How many contents each tenant has pinned."""
        return Counter(self._blocks.owner.values())
