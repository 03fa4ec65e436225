"""Keeps a prefix for a while, though no request runs with it."""

from __future__ import annotations

from collections.abc import Sequence

from twostroke.core.kv_groups import keys_of_groups
from twostroke.core.request import BlockKey
from twostroke.kv_cache.block_hash import prefix_hashes
from twostroke.kv_cache.manager import KVCacheManager


def pin_prefix(
    kv: KVCacheManager,
    token_ids: Sequence[int],
    cache_salt: str,
    until: float,
    tenant: str = "",
) -> list[BlockKey] | None:
    """Evict the full blocks of a prefix only after all others, up to ``until``.

    They still give way where running requests have no room otherwise. Of a window, its last
    blocks are pinned; of recurrent layers, the state at the end, which must be there. Returns
    the keys of the first group, or ``None``, and nothing is changed, if that would be too many
    for the tenant (``Pins``).
    """
    count = kv.groups.count
    hashes = prefix_hashes(token_ids, kv.block_size, kv.model_id, cache_salt)
    keys = [key for each in hashes for key in keys_of_groups(each, count)]
    keys = kv.states.shorten(keys, kv.needs, lambda key: True)
    ends = keys[::count]
    pinned = [keys[entry] for entry in kv.needs.entries(len(ends))]
    states = ends[-1:] if kv.states.exist else []
    return ends if kv.pins.pin(pinned, until, tenant, states) else None
