"""The block tables and state slots for an executor; live and simulated engines have the same."""

from __future__ import annotations

from twostroke.engine.executor import ExecutorInfo
from twostroke.kv_cache.manager import KVCacheManager
from twostroke.kv_cache.state_slots import StateSlots
from twostroke.kv_cache.states import NO_STATES


def make_kv(info: ExecutorInfo, *, enable_prefix_caching: bool) -> KVCacheManager:
    """The manager, with state slots and explained hits if the model has recurrent layers."""
    slots = _make_slots(info, enable_prefix_caching) if info.num_state_slots else None
    return KVCacheManager(
        info.num_blocks,
        info.block_size,
        info.kv_groups,
        states=NO_STATES if slots is None else slots,
        model_id=info.model_id,
        enable_prefix_caching=enable_prefix_caching,
    )


def _make_slots(info: ExecutorInfo, enable_prefix_caching: bool) -> StateSlots:
    return StateSlots(
        info.num_state_slots,
        info.block_size,
        info.state_spacing,
        info.kv_groups.count,
        enable_prefix_caching=enable_prefix_caching,
        num_parts=info.num_state_parts,
    )


def capacity_text(info: ExecutorInfo) -> str:
    """What a KV cache holds, for people: tokens, or more than that where windows end."""
    tokens = max(info.cache_tokens, info.full_requests * info.max_model_len)
    windows = sorted({window for window in info.kv_groups.windows if window is not None})
    if not windows:
        return f"{tokens:,} tokens"
    listed = " and ".join(f"{window:,}" for window in windows)
    return f"{tokens:,} tokens of long requests (windows of {listed})"
