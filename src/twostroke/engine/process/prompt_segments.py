"""What routers see of a prompt: its beginning in segments, each named by a hash."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator

from twostroke.core.generation_request import GenerationRequest

SEGMENT_TOKENS = 64
MAX_SEGMENTS = 256  # what comes after them decides nothing


def prompt_segments(request: GenerationRequest) -> tuple[tuple[bytes, int], ...]:
    """Its first segments as ``RoutedRequest`` wants them."""
    return tuple(itertools.islice(_segments(request), MAX_SEGMENTS))


def _segments(request: GenerationRequest) -> Iterator[tuple[bytes, int]]:
    """The prompt's full segments, each named by a hash of all tokens up to its end."""
    prompt, salt = request.prompt_token_ids, f"{request.adapter} {request.cache_salt}".encode()
    digest = hashlib.blake2b(salt, digest_size=16)
    for start in range(0, len(prompt) - SEGMENT_TOKENS + 1, SEGMENT_TOKENS):
        digest.update(str(prompt[start : start + SEGMENT_TOKENS]).encode())  # not checked yet
        yield digest.copy().digest(), SEGMENT_TOKENS
