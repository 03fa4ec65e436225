"""Chained hashes of full blocks: equal hashes mean equal tokens in a block and in all before it."""

from __future__ import annotations

from array import array
from hashlib import blake2b

from twostroke.core.request import BlockKey, Request

DIGEST_BYTES = 16


def root_hash(model_id: str, cache_salt: str, adapter_id: str = "") -> bytes:
    """The chain's first link: content is shared within one model, one adapter and one salt only."""
    key = f"{len(model_id)}:{model_id}{len(adapter_id)}:{adapter_id}{cache_salt}"
    data = key.encode("utf-8", "surrogatepass")
    return blake2b(data, digest_size=DIGEST_BYTES).digest()


def extend_block_hashes(
    request: Request, num_blocks: int, block_size: int, model_id: str
) -> list[BlockKey]:
    """Hashes of at least the request's first ``num_blocks`` blocks, computed once and kept on it.

    The blocks must be full. The list is the request's own and may hold more: do not change it.

    blake2b rather than Python's ``hash``: a collision would serve one request another's keys and
    values, and a client must not be able to construct one.
    """
    hashes = request.block_hashes
    if len(hashes) < num_blocks:
        assert num_blocks * block_size <= len(request.token_ids), "only full blocks are hashed"
        root = root_hash(model_id, request.cache_salt, request.adapter_id)
        previous = hashes[-1] if hashes else root
        assert isinstance(previous, bytes)  # simulated requests have keys for all their blocks
        for index in range(len(hashes), num_blocks):
            tokens = request.token_ids[index * block_size : (index + 1) * block_size]
            data = previous + array("I", tokens).tobytes()
            previous = blake2b(data, digest_size=DIGEST_BYTES).digest()
            hashes.append(previous)
    return hashes
