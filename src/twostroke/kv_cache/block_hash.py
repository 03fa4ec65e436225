"""Chained hashes of full blocks: equal hashes mean equal tokens in a block and in all before it."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b

from twostroke.core.kv_groups import keys_of_groups
from twostroke.core.request import BlockKey, Request

DIGEST_BYTES = 16


def root_hash(model_id: str, cache_salt: str, adapter: str = "") -> bytes:
    """The chain's first link: content is shared within one model, adapter and salt only."""
    key = f"{len(model_id)}:{model_id}{len(adapter)}:{adapter}{cache_salt}"
    return blake2b(key.encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES).digest()


def extend_block_hashes(
    request: Request, num_blocks: int, block_size: int, model_id: str, num_groups: int = 1
) -> list[BlockKey]:
    """Keys of at least the request's first ``num_blocks`` blocks, computed once and kept on it.

    The blocks must be full. With several groups of layers, the keys of each index come one after
    the other. The list is the request's own and may hold more: do not change it.

    blake2b rather than Python's ``hash``: a collision would serve one request another's keys and
    values, and a client must not be able to construct one.
    """
    hashes = request.block_hashes
    if len(hashes) < num_blocks * num_groups:
        assert num_blocks * block_size <= len(request.token_ids), "only full blocks are hashed"
        root = root_hash(model_id, request.spec.cache_salt, request.spec.adapter)
        last = hashes[-1] if hashes else root
        assert isinstance(last, bytes)  # simulated requests have keys for all their blocks
        previous = last[:DIGEST_BYTES]
        for index in range(len(hashes) // num_groups, num_blocks):
            tokens = request.token_ids[index * block_size : (index + 1) * block_size]
            previous = _next_hash(previous, tokens)
            hashes += keys_of_groups(previous, num_groups)
    return hashes


def prefix_hashes(
    token_ids: Sequence[int], block_size: int, model_id: str, cache_salt: str
) -> list[BlockKey]:
    """Hashes of the full blocks of a text, as those of a request with this prompt."""
    hashes: list[BlockKey] = []
    previous = root_hash(model_id, cache_salt)
    for start in range(0, len(token_ids) - block_size + 1, block_size):
        previous = _next_hash(previous, token_ids[start : start + block_size])
        hashes.append(previous)
    return hashes


def _next_hash(previous: bytes, tokens: Sequence[int]) -> bytes:
    data = previous + array("I", tokens).tobytes()
    return blake2b(data, digest_size=DIGEST_BYTES).digest()
