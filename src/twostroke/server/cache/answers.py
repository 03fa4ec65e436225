"""What the routes of the prefix cache answer."""

from __future__ import annotations

from msgspec import UNSET, Struct, UnsetType

from twostroke.engine.cache_orders import TierReport
from twostroke.kv_cache.prefix_survey import CachedPrefix


class CacheObject(Struct, kw_only=True):
    __doc__ = (
        "The prefix cache. ``prefixes`` is a tree of what is held; names of tenants are for admin"
        " keys, others see what is their own. ``left_out_blocks`` have no place in it."
    )

    object: str = "cache"
    block_size: int
    tiers: list[TierReport]
    prefixes: list[CachedPrefix]
    left_out_blocks: int


class PinnedPrefix(Struct, kw_only=True):
    __doc__ = (
        "A prefix whose full blocks are evicted after all others. ``expires_at`` is in seconds"
        " since 1970; ``prompt_tokens`` counts the whole text."
    )

    object: str = "cache.prefix"
    id: str
    prompt_tokens: int
    pinned_tokens: int
    cached_tokens: int
    expires_at: int


class ClearedCache(Struct, kw_only=True):
    __doc__ = (
        "How many blocks were forgotten. Where several engines serve the model, ``engines`` says"
        " of each that it is done, or why not: a worker that is gone does it once it is back."
    )

    object: str = "cache.cleared"
    cleared_blocks: int
    engines: dict[str, str] | UnsetType = UNSET
