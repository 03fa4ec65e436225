"""Chained hashes of full blocks: equal hashes mean equal tokens in this block and in all before
it.
"""

from __future__ import annotations

from array import array
from hashlib import blake2b

from twostroke.core.request import BlockKey, Request

DIGEST_BYTES = 16


def root_hash(model_id: str, cache_salt: str) -> bytes:
    """The chain's first link: content is shared only within one model and one salt."""
    key = f"{len(model_id)}:{model_id}{cache_salt}".encode("utf-8", "surrogatepass")
    return blake2b(key, digest_size=DIGEST_BYTES).digest()


def extend_block_hashes(
    request: Request, num_blocks: int, block_size: int, model_id: str
) -> list[BlockKey]:
    """Hashes of at least the request's first ``num_blocks`` full blocks, computed once and kept on
    the request.

    It is the request's own list, which may hold more: not to be changed.

    blake2b rather than Python's ``hash``: a collision would serve one request another's keys and
    values, and a client must not be able to construct one.
    """
    hashes = request.block_hashes
    if len(hashes) < num_blocks:
        previous = hashes[-1] if hashes else root_hash(model_id, request.cache_salt)
        assert isinstance(previous, bytes)  # numbers are given for all blocks
        for index in range(len(hashes), num_blocks):
            tokens = request.token_ids[index * block_size : (index + 1) * block_size]
            previous = blake2b(
                previous + array("I", tokens).tobytes(), digest_size=DIGEST_BYTES
            ).digest()
            hashes.append(previous)
    return hashes
