"""What routers see of a call: its session, its prompt's beginning, and where that is cached."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Hashable, Iterator, Mapping

from twostroke.core.generation_request import GenerationRequest
from twostroke.core.request import Request
from twostroke.engine.process.engine_process import EngineProcess
from twostroke.routing.routers import RoutedRequest

SEGMENT_TOKENS = 64
MAX_SEGMENTS = 256  # what comes after them decides nothing
# What names a session, the narrowest first: OpenAI's field for the use of caches, then its user,
# or Anthropic's, which has no other.
SESSION_LABELS = ("prompt_cache_key", "safety_identifier", "user", "user_id")


def routed_request(call: GenerationRequest, engines: Mapping[int, EngineProcess]) -> RoutedRequest:
    """What a router of these engines sees of a call."""
    requests: dict[Hashable, Request | None] = {}

    def num_cached(index: int) -> int:
        prefixes = engines[index].prefixes
        sizes = prefixes.mirror.sizes
        if sizes not in requests:
            requests[sizes] = prefixes.as_request(call)
        return prefixes.num_cached(requests[sizes])

    return RoutedRequest(
        len(call.prompt_token_ids),
        tuple(itertools.islice(_segments(call), MAX_SEGMENTS)),
        _session_of(call),
        num_cached,
    )


def _session_of(call: GenerationRequest) -> str | None:
    """Its key or user, which another tenant's do not meet."""
    named = (call.labels[label] for label in SESSION_LABELS if label in call.labels)
    name = next(named, None)
    return None if name is None else f"{call.tenant} {name}"


def _segments(request: GenerationRequest) -> Iterator[tuple[bytes, int]]:
    """The prompt's full segments, each named by a hash of all tokens up to its end."""
    prompt, salt = request.prompt_token_ids, f"{request.adapter} {request.cache_salt}".encode()
    digest = hashlib.blake2b(salt, digest_size=16)
    for start in range(0, len(prompt) - SEGMENT_TOKENS + 1, SEGMENT_TOKENS):
        digest.update(str(prompt[start : start + SEGMENT_TOKENS]).encode())  # not checked yet
        yield digest.copy().digest(), SEGMENT_TOKENS
