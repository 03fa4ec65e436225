"""Time of attention over a paged cache, for one layer on one device.

Decoding reads the keys and values of all requests once, so it is bound by memory. Prefill computes
pairs of tokens, so it is bound by arithmetic: a quadratic part, and a linear one for queries,
outputs and the half tiles wasted on the diagonal.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from twostroke.model_spec.layer_specs import AttentionSpec, seen_pairs
from twostroke.simulator.cost.efficiencies import AttentionEfficiency
from twostroke.simulator.cost.kernel_time import ACTIVATION_BYTES, KernelTime, combine

# Queries that one compute unit works on. The last tile of the longest chunk is a lower bound,
# even if all other units are idle.
QUERY_TILE = 128

# Kernels that prefill of latent attention starts for cached tokens beside their product: collect
# them, join keys with their rotary part, merge the result with that of the new tokens.
CONTEXT_KERNELS = 3


def context_bytes(layer: AttentionSpec, ranks: int, cache_bytes: float) -> float:
    """Bytes that a cached token of latent attention moves in a prefill step.

    It is collected from its blocks, and its keys are copied beside the rotary part. The product
    that expands it to keys and values (``kv_b_proj`` in checkpoints) is not included. The "compute
    friendly" form of vLLM's ``v1/attention/backends/mla/common.py``; DeepSeek-V2
    (arXiv:2405.04434), section 2.1, has the formulas.
    """
    collected = layer.cached_elements() * (cache_bytes + ACTIVATION_BYTES)
    return collected + 2 * layer.heads / ranks * layer.key_dim * ACTIVATION_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceShare:
    """What one device brings, and its part of a layer. Fields as in ``gemm.Product``.

    Attributes:
        cache_bytes: Bytes of one cached element.
    """

    flops: float
    bandwidth: float
    units: int
    ranks: int = 1
    cache_bytes: float = 2.0


class DecodeAttention:
    """One layer's attention of requests that decode."""

    def __init__(
        self, layer: AttentionSpec, efficiency: AttentionEfficiency, share: DeviceShare
    ) -> None:
        e = self._efficiency = efficiency
        self._ranks, self._units = share.ranks, share.units
        self._heads = layer.heads / share.ranks
        self._kv_heads = 1 if layer.latent else max(layer.kv_heads / share.ranks, 1.0)
        self._cached = layer.cached_elements(share.ranks)
        self._cache_bytes = share.cache_bytes
        self._width = layer.key_dim + layer.value_dim
        self._flops = layer.decode_flops()
        self._memory_rate = e.memory * share.bandwidth
        self._compute_rate = e.compute * share.flops

    def time(self, requests: float, context: float, queries: float = 1.0) -> KernelTime:
        """Time for ``requests`` that together see ``context`` tokens, cut to their windows.

        Args:
            queries: Tokens that each of them computes.
        """
        e = self._efficiency
        moved = context * self._cached * self._cache_bytes
        moved += queries * requests * self._heads * self._width * ACTIVATION_BYTES
        compute = queries * context * self._flops / self._ranks / self._compute_rate
        blocks = ceil(requests * self._kv_heads / self._units)
        return combine(compute, moved / self._memory_rate, e.launch + e.block * blocks, e.sharpness)


class PrefillAttention:
    """One layer's attention of chunks of prompts."""

    def __init__(
        self, layer: AttentionSpec, efficiency: AttentionEfficiency, share: DeviceShare
    ) -> None:
        e = self._efficiency = efficiency
        self._layer, self._units = layer, share.units
        self._heads = layer.heads / share.ranks
        self._width = layer.key_dim + layer.value_dim
        self._token_bytes = layer.cached_elements(share.ranks) * share.cache_bytes
        if layer.latent and layer.index is None:  # reads the expanded keys and values of all heads
            self._token_bytes = self._heads * self._width * ACTIVATION_BYTES
        self._flops = layer.prefill_flops()
        self._memory_rate = e.memory * share.bandwidth
        self._compute_rate = e.compute * share.flops

    def time(self, chunks: tuple[tuple[int, int], ...]) -> KernelTime:
        """Time for chunks of (new tokens, tokens cached before)."""
        e, window = self._efficiency, self._layer.attended
        half_tile, tile = 0.5 * e.tile, e.tile if e.tile > 1.0 else 1.0
        pairs = 0.0
        cached = new = tiles = longest = 0
        for length, before in chunks:
            pairs += seen_pairs(length, before, window) + half_tile * length
            cached += before if window is None or before < window else window
            new += length
            tiles += ceil(length / tile)
            end = before + length
            seen = end if window is None or end < window else window
            last = (length if length < QUERY_TILE else QUERY_TILE) * seen
            longest = last if last > longest else longest
        all_pairs, longest_pairs = pairs * self._heads, longest * self._units
        bound = all_pairs if all_pairs > longest_pairs else longest_pairs
        compute = bound * self._flops / self._layer.heads / self._compute_rate
        moved = (cached + new) * self._token_bytes
        moved += 2 * new * self._heads * self._width * ACTIVATION_BYTES
        waves = ceil(tiles * self._heads / self._units)
        start = e.launch + e.block * waves + e.chunk * len(chunks)
        return combine(compute, moved / self._memory_rate, start, e.sharpness)
