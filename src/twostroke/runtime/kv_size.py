"""How many KV blocks fit beside the weights."""

from __future__ import annotations

import torch

from twostroke.core.config import CacheConfig
from twostroke.core.errors import InsufficientMemoryError
from twostroke.core.flags.byte_sizes import format_bytes
from twostroke.core.kv_groups import KVGroups
from twostroke.runtime.device import free_memory, total_memory


def plan_num_blocks(
    config: CacheConfig,
    *,
    block_bytes: int,
    groups: KVGroups,
    max_model_len: int,
    max_num_seqs: int,
    device: torch.device,
) -> int:
    """How many blocks to allocate, with the weights already in memory.

    ``kv_cache_memory`` if given, else the configured share of the memory. On a CPU that share is
    shared with others, so it ends where ``max_num_seqs`` requests of full length have room; what is
    asked for, and a GPU, is filled: more blocks keep more prefixes.

    Raises:
        InsufficientMemoryError: Not even one request of ``max_model_len`` tokens fits.
    """
    per_request = groups.most_blocks(max_model_len, config.block_size)
    free = free_memory(device)
    if config.kv_cache_memory is not None:
        budget = config.kv_cache_memory
        if budget > free:
            raise InsufficientMemoryError(
                f"--kv-cache-memory asks for {format_bytes(budget)}, but {device} has"
                f" {format_bytes(free)} free",
                hint="lower --kv-cache-memory",
            )
    elif device.type == "cuda":
        used = total_memory(device) - free
        budget = int(total_memory(device) * config.gpu_memory_utilization) - used
    else:
        budget = min(
            int(free * config.cpu_memory_utilization), per_request * max_num_seqs * block_bytes
        )
    fitting = max(budget, 0) // block_bytes
    if fitting < per_request:
        raise InsufficientMemoryError(
            f"one request of {max_model_len} tokens needs {format_bytes(per_request * block_bytes)}"
            f" of KV cache, but only {format_bytes(max(budget, 0))} may be used on {device}, enough"
            f" for {groups.longest_request(fitting, config.block_size)} tokens",
            hint="lower --max-model-len or raise --kv-cache-memory",
        )
    return fitting
