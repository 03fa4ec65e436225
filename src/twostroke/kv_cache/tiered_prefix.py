"""What of a request's prefix tiers can add to the cache, and what it needs to be found in them.

With recurrent layers a prefix ends at a state. In tiers a state lies in parts of a block's size, so
that tiers know nothing of it: each part has a key and, for the executor, a number after those of
all blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from twostroke.core.kv_groups import state_key
from twostroke.core.request import BlockKey, Request
from twostroke.kv_cache.block_table import NO_BLOCK, Prefix
from twostroke.kv_cache.manager import KVCacheManager


class Loadable(NamedTuple):
    """What tiers would add to a cached prefix.

    Attributes:
        keys: Keys of blocks to load; ``kept_blocks`` of the longer prefix are here already.
        num_tokens: That need not be computed then.
        state: The block after which the state at its end is found; ``None`` without such layers.
    """

    keys: list[BlockKey]
    kept_blocks: list[int]
    num_tokens: int
    state: BlockKey | None = None


class Savable(NamedTuple):
    """What tiers must have of a running request for it to go on where ``num_tokens`` end."""

    blocks: list[tuple[BlockKey, int]]
    num_tokens: int


NOTHING = Loadable([], [], 0)


def state_parts(kv: KVCacheManager, key: BlockKey, slot: int) -> list[tuple[BlockKey, int]]:
    """Keys and numbers of the parts of the state after a block, which lies in a slot."""
    count = kv.states.num_parts
    first = kv.pool.num_blocks + slot * count
    return [(state_key(key, part), first + part) for part in range(count)]


def longest_in_tiers(
    kv: KVCacheManager, keys: list[BlockKey], is_in_tier: Callable[[BlockKey], bool]
) -> int:
    """Positions of the longest prefix that cache and tiers have together, states included."""
    find, count = kv.pool.find, kv.states.num_parts

    def has(key: BlockKey) -> bool:
        return find(key) is not None or is_in_tier(key)

    def has_state(key: BlockKey) -> bool:
        if kv.states.pool.find(key) is not None:
            return True
        return count > 0 and all(is_in_tier(state_key(key, part)) for part in range(count))

    if not kv.states.exist:
        return kv.needs.longest(keys, has)
    return kv.needs.longest_to_a_state(keys, has, has_state)


def find_loadable(
    kv: KVCacheManager, request: Request, prefix: Prefix, is_in_tier: Callable[[BlockKey], bool]
) -> Loadable:
    """What tiers would add to the prefix of a waiting request, if there is room for it."""
    keys, pool = kv.candidate_keys(request), kv.pool
    length = longest_in_tiers(kv, keys, is_in_tier)
    num_tokens = length * kv.block_size - prefix.num_tokens
    if num_tokens <= 0:
        return NOTHING
    blocks = {keys[entry]: pool.find(keys[entry]) for entry in kv.needs.entries(length)}
    loaded = [key for key, block in blocks.items() if block is None]
    kept = [block for block in blocks.values() if block is not None]
    if len(loaded) + sum(map(pool.is_free, kept)) > pool.num_free:
        return NOTHING
    state = keys[(length - 1) * kv.groups.count] if kv.states.exist else None
    if state is not None and not kv.states.can_load(request, state):
        return NOTHING
    return Loadable(loaded, kept, num_tokens, state)


def find_savable(kv: KVCacheManager, request: Request) -> Savable | None:
    """What a running request can go on from; ``None``: from its start alone."""
    if not (kv.caches_prefixes and request.reads_prefix_cache):
        return None
    count, table = kv.groups.count, kv.block_ids(request)
    num_full = request.num_computed_tokens // kv.block_size
    keys = kv.keys_of(request, num_full)[: num_full * count]
    if not kv.states.exist:
        blocks = [(key, block) for key, block in zip(keys, table) if block != NO_BLOCK]
        return Savable(blocks, num_full * kv.block_size)
    latest = kv.states.latest(request, keys) if kv.states.num_parts else None
    if latest is None:
        return None
    length, slot = latest
    blocks = [(keys[entry], table[entry]) for entry in kv.needs.entries(length)]
    if any(block == NO_BLOCK for _, block in blocks):
        return None
    parts = state_parts(kv, keys[(length - 1) * count], slot)
    return Savable([*blocks, *parts], length * kv.block_size)
