"""What a tier has got and lost since it was last asked."""

from __future__ import annotations

from twostroke.core.kv_tier_config import TierChange
from twostroke.core.request import BlockKey


class ChangeLog:
    """Keeps the last word on each key; not safe on several threads."""

    def __init__(self, tier: str) -> None:
        self._tier = tier
        self._stored: dict[BlockKey, bool] = {}

    def store(self, key: BlockKey) -> None:
        self._stored[key] = True

    def remove(self, key: BlockKey) -> None:
        self._stored[key] = False

    def take(self) -> TierChange:
        stored, self._stored = self._stored, {}
        return TierChange(
            self._tier,
            [key for key, is_there in stored.items() if is_there],
            [key for key, is_there in stored.items() if not is_there],
        )
