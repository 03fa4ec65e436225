"""What lies in which tier, as far as their reports say."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from twostroke.core.kv_groups import is_state_key
from twostroke.core.kv_tier_config import TierChange
from twostroke.core.request import BlockKey
from twostroke.kv_cache.connector import TierInfo


class TierDirectory:
    """The keys of each tier; tiers in the order in which they are asked, the fastest first.

    Attributes:
        states_alone: Blocks hold nothing, so every tier has them all; only states are kept.
    """

    def __init__(self, tiers: Sequence[TierInfo]) -> None:
        self.states_alone = any(tier.states_alone for tier in tiers)
        self.tiers = {tier.name: tier for tier in tiers}
        self._keys: dict[str, dict[BlockKey, None]] = {
            tier.name: dict.fromkeys(tier.keys) for tier in tiers
        }

    def add(self, tier: TierInfo) -> None:
        """One more, asked after the others."""
        self.tiers[tier.name] = tier
        self._keys[tier.name] = dict.fromkeys(tier.keys)

    def find(self, key: BlockKey) -> str | None:
        """The first tier that has a block."""
        return next((name for name in self._keys if self.has(name, key)), None)

    def has(self, tier: str, key: BlockKey) -> bool:
        return key in self._keys[tier] or (self.states_alone and not is_state_key(key))

    def homes(self, key: BlockKey) -> list[str]:
        """All tiers that keep a block."""
        return [name for name, keys in self._keys.items() if key in keys]

    def num_blocks(self, tier: str) -> int:
        return len(self._keys[tier])

    def take_in(self, changes: Iterable[TierChange]) -> None:
        """Follow what tiers report."""
        for change in changes:
            keys = self._keys[change.tier]
            keys.update(dict.fromkeys(change.stored))
            for key in change.removed:
                keys.pop(key, None)

    def forget(self, tier: str, keys: Iterable[BlockKey]) -> None:
        """Find these no more, ahead of the tier's own report."""
        for key in keys:
            self._keys[tier].pop(key, None)

    def keys(self, tier: str) -> list[BlockKey]:
        return list(self._keys[tier])
