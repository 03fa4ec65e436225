"""How many KV blocks, and slots of recurrent state, fit beside the weights."""

from __future__ import annotations

import torch

from twostroke.core.config import CacheConfig
from twostroke.core.errors import InsufficientMemoryError
from twostroke.core.flags.byte_sizes import format_bytes
from twostroke.core.kv_groups import KVGroups
from twostroke.kv_cache.state_room import (
    MAX_EMPTY_BLOCKS,
    MIN_SLOTS,
    NO_STATE,
    CacheSize,
    StateSize,
    divide_room,
    states_alone,
)
from twostroke.runtime.device import free_memory, held_memory, total_memory

# On a CPU, of a model without a KV cache: states that outlive each request that may run at once.
CHECKPOINTS_EACH = 3


def plan_cache_size(
    config: CacheConfig,
    *,
    block_bytes: int,
    groups: KVGroups,
    max_model_len: int,
    max_num_seqs: int,
    device: torch.device,
    state: StateSize = NO_STATE,
    beside: int = 0,
) -> CacheSize:
    """How much to allocate, with the weights already in memory.

    ``kv_cache_memory`` if given, else the configured share of the memory. On a CPU that share is
    shared with others, so it ends where ``max_num_seqs`` requests of full length have room; what is
    asked for, and a GPU, is filled: more blocks keep more prefixes.

    Args:
        beside: Bytes that a GPU's share leaves to steps.

    Raises:
        InsufficientMemoryError: Not even one request of ``max_model_len`` tokens fits.
    """
    per_request = groups.most_blocks(max_model_len, config.block_size)
    if not block_bytes:
        if per_request > MAX_EMPTY_BLOCKS:
            max_tokens = MAX_EMPTY_BLOCKS * config.block_size
            raise InsufficientMemoryError(
                f"one request of {max_model_len} tokens needs {per_request} blocks of"
                f" {config.block_size}, more than the {MAX_EMPTY_BLOCKS} that are counted",
                hint=f"give --max-model-len {max_tokens} or less",
            )
        each = state.num_bytes * (1 + state.num_scratch + CHECKPOINTS_EACH)
        budget = _budget(config, max_num_seqs * each, device, beside)
        _check_states(budget, state, device)
        return states_alone(budget, state, max_num_seqs, per_request)
    longest = int(per_request * (block_bytes + state.per_block))
    longest += state.num_bytes * (1 + state.num_scratch)
    budget = _budget(config, max_num_seqs * longest, device, beside)
    size = divide_room(budget, block_bytes, state, max_num_seqs)
    if size.num_blocks < per_request:
        raise InsufficientMemoryError(
            f"one request of {max_model_len} tokens needs {format_bytes(longest)}"
            f" of KV cache, but only {format_bytes(max(budget, 0))} may be used on {device}, enough"
            f" for {groups.longest_request(size.num_blocks, config.block_size)} tokens",
            hint="lower --max-model-len or raise --kv-cache-memory",
        )
    return size


def _check_states(budget: int, state: StateSize, device: torch.device) -> None:
    least = state.num_bytes * (MIN_SLOTS + state.num_scratch)
    if budget < least:
        raise InsufficientMemoryError(
            f"the states of one request and its checkpoint need {format_bytes(least)}, but only"
            f" {format_bytes(max(budget, 0))} may be used on {device}",
            hint="raise --kv-cache-memory",
        )


def _budget(config: CacheConfig, most: int, device: torch.device, beside: int) -> int:
    """Bytes for the cache; ``most`` is what it could ever use on a CPU."""
    free = free_memory(device)
    if config.kv_cache_memory is not None:
        if config.kv_cache_memory > free:
            raise InsufficientMemoryError(
                f"--kv-cache-memory asks for {format_bytes(config.kv_cache_memory)}, but {device}"
                f" has {format_bytes(free)} free",
                hint="lower --kv-cache-memory",
            )
        return config.kv_cache_memory
    share = config.memory_share
    if device.type == "cuda":
        total = total_memory(device)
        # Others have the rest of the device: of what is used, only our own counts towards a share.
        used = total - free if share == 1 else held_memory(device)
        return room_on_gpu(total, free, used, config.gpu_memory_utilization * share, beside)
    return min(int(free * config.cpu_memory_utilization * share), most)


def room_on_gpu(total: int, free: int, used: int, share: float, beside: int) -> int:
    """Bytes for the cache: a share of the memory, less what is used, and what steps need beside.

    Steps find their room in what is left of the share, or else nowhere: so it is kept of what is
    free as well.
    """
    return min(free, int(total * share) - used) - beside
