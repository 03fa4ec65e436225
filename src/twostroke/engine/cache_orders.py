"""Orders on the prefix cache of a running engine, and their answers: plain data."""

from __future__ import annotations

import msgspec

from twostroke.kv_cache.prefix_survey import CachedPrefix


class ShowCache(msgspec.Struct, frozen=True, tag=True):
    """Ask for the report; of one tenant's prefixes, or of all with names (``None``)."""

    tenant: str | None = None


class PinPrefix(msgspec.Struct, frozen=True, tag=True):
    """Keep a prefix, whose blocks should be in the cache by now, for ``seconds``.

    Attributes:
        tenant: Towards whose share it counts.
    """

    token_ids: list[int]
    cache_salt: str
    seconds: float
    tenant: str = ""


class ClearCache(msgspec.Struct, frozen=True, tag=True):
    """Forget all prefixes, in the tiers too."""


CacheOrder = ShowCache | PinPrefix | ClearCache


class TierReport(msgspec.Struct, kw_only=True):
    name: str
    blocks: int
    max_blocks: int
    bytes: int


class CacheReport(msgspec.Struct, kw_only=True):
    """The cache after an order was carried out.

    Attributes:
        block_size: Tokens per block.
        tiers: ``memory`` is the KV cache itself.
        prefixes: A tree, after ``ShowCache``.
        left_out_blocks: Blocks that the tree has no place for.
        prefix_id: Names what ``PinPrefix`` pinned; empty if it has no full block.
        pinned_tokens: Tokens of that.
        cleared_blocks: How many ``ClearCache`` forgot.
        engines: Where there are several, by name: that it has done it, or why it has not.
    """

    block_size: int
    tiers: list[TierReport]
    prefixes: list[CachedPrefix] = []
    left_out_blocks: int = 0
    prefix_id: str = ""
    pinned_tokens: int = 0
    cleared_blocks: int = 0
    engines: dict[str, str] = {}
