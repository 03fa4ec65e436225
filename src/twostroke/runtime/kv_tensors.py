"""The KV cache's tensors: how many blocks fit, their allocation, copies and zeroing."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from twostroke.core.byte_sizes import format_bytes
from twostroke.core.config import CacheConfig
from twostroke.core.errors import InsufficientMemoryError
from twostroke.layers.pages import fresh_tensor
from twostroke.model_spec.spec import ModelSpec
from twostroke.runtime.device import free_memory, total_memory


def plan_num_blocks(
    config: CacheConfig,
    *,
    bytes_per_token: int,
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
    block_bytes = bytes_per_token * config.block_size
    per_request = -(-max_model_len // config.block_size)
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
            f" for {fitting * config.block_size} tokens",
            hint="lower --max-model-len or raise --kv-cache-memory",
        )
    return fitting


class KVTensors:
    """Keys and values of all layers, zeroed at first: whatever is masked must still be finite.

    Args:
        model: Every layer of it has attention.

    Attributes:
        keys: Per layer ``[blocks, block_size, kv_heads, head_dim]``; ``values`` the same.
    """

    def __init__(
        self,
        model: ModelSpec,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        blocks = (num_blocks, block_size)
        specs = [layer.attention for layer in model.each_layer() if layer.attention]
        self.keys = [_zeros((*blocks, a.kv_heads, a.key_dim), dtype, device) for a in specs]
        self.values = [_zeros((*blocks, a.kv_heads, a.value_dim), dtype, device) for a in specs]

    def copy_blocks(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks ``(source, destination)``, all sources read before any is written."""
        if not copies:
            return
        pairs = torch.tensor(copies, device=self.keys[0].device)  # [copies, 2]
        source, destination = pairs[:, 0], pairs[:, 1]
        for cache in (*self.keys, *self.values):
            cache[destination] = cache[source]  # indexing gathers into a new tensor first

    def all_finite(self, slots: Tensor) -> bool:
        """Whether ``slots`` [slots] hold finite keys and values in the last layer.

        NaN of an earlier layer would be there too.
        """
        last = (self.keys[-1], self.values[-1])
        # One sum of everything: a third of the time that one for each slot takes.
        sums = [
            cache.flatten(0, 1).flatten(1).index_select(0, slots).sum(dtype=torch.float32)
            for cache in last
        ]
        return bool(torch.isfinite(sums[0] + sums[1]))

    def zero_slots(self, slots: Tensor) -> None:
        """Zero ``slots`` [slots] in every layer, so that no other request reads a NaN there."""
        for cache in (*self.keys, *self.values):
            cache.view(-1, *cache.shape[2:]).index_fill_(0, slots, 0)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    return fresh_tensor(shape, dtype)
