"""Time of attention over a paged cache, for one layer on one device.

Decoding reads the keys and values of all requests once: bytes decide. Prefill computes pairs of tokens: arithmetic
decides, above the quadratic part a linear one for queries, outputs and the diagonal's wasted half tiles.
"""

from __future__ import annotations

from math import ceil

from twostroke.simulator.efficiencies import AttentionEfficiency
from twostroke.simulator.kernel_time import KernelTime, combine
from twostroke.simulator.model_sheet import Attention, seen_pairs

ACTIVATION_BYTES = 2.0
# Queries that one compute unit works on: the last tile of the longest chunk takes as long however idle the others are.
QUERY_TILE = 128


def decode_time(
    layer: Attention,
    requests: float,
    context: float,
    *,
    efficiency: AttentionEfficiency,
    flops: float,
    bandwidth: float,
    units: int,
    ranks: int = 1,
    cache_bytes: float = 2.0,
    queries: int = 1,
) -> KernelTime:
    """Time for ``requests`` that compute ``queries`` tokens each and together see ``context`` tokens.

    Args:
        context: Sum over the requests, windows already taken into account.
        cache_bytes: Of one cached element. Other arguments as in ``gemm_time``.
    """
    e = efficiency
    heads = layer.heads / ranks
    kv_heads = 1 if layer.latent else max(layer.kv_heads / ranks, 1.0)
    moved = context * layer.cached_elements(ranks) * cache_bytes
    moved += queries * requests * heads * (layer.key_dim + layer.value_dim) * ACTIVATION_BYTES
    memory = moved / (e.memory * bandwidth)
    compute = queries * context * layer.decode_flops() / ranks / (e.compute * flops)
    blocks = ceil(requests * kv_heads / units)
    return combine(compute, memory, e.launch + e.block * blocks, e.sharpness)


def prefill_time(
    layer: Attention,
    chunks: tuple[tuple[int, int], ...],
    *,
    efficiency: AttentionEfficiency,
    flops: float,
    bandwidth: float,
    units: int,
    ranks: int = 1,
    cache_bytes: float = 2.0,
) -> KernelTime:
    """Time for chunks of (new tokens, tokens cached before). Arguments as in ``decode_time``."""
    e = efficiency
    heads = layer.heads / ranks
    pairs = 0.0
    cached = 0
    new = 0
    tiles = 0
    longest = 0
    for length, before in chunks:
        pairs += seen_pairs(length, before, layer.window) + 0.5 * e.tile * length
        cached += before if layer.window is None else min(before, layer.window)
        new += length
        tiles += ceil(length / max(e.tile, 1.0))
        longest = max(longest, min(length, QUERY_TILE) * layer.seen(before + length))
    compute = max(pairs * heads, longest * units) * layer.prefill_flops() / layer.heads / (e.compute * flops)
    moved = (cached + new) * layer.cached_elements(ranks) * cache_bytes
    moved += 2 * new * heads * (layer.key_dim + layer.value_dim) * ACTIVATION_BYTES
    memory = moved / (e.memory * bandwidth)
    waves = ceil(tiles * heads / units)
    return combine(compute, memory, e.launch + e.block * waves + e.chunk * len(chunks), e.sharpness)
