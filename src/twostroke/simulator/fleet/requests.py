"""From the requests of a workload to what routers and schedulers take."""

from __future__ import annotations

from dataclasses import replace

from twostroke.core.generation_request import ResolvedRequest
from twostroke.core.kv_groups import keys_of_groups
from twostroke.core.request import BlockKey, Request
from twostroke.core.sampling_params import SamplingParams
from twostroke.routing.routers import RoutedRequest
from twostroke.simulator.workloads.base import RequestSpec

# Distance between the keys of two identities: more than all requests have blocks. Its last bits
# are mixed, because a dict hashes by those.
_STRIDE = 2_654_435_761


def to_routed(spec: RequestSpec) -> RoutedRequest:
    """What a router sees of a request."""
    return RoutedRequest(spec.prompt_tokens, spec.segments)


def block_keys(spec: RequestSpec, block_size: int, first_private: int) -> list[BlockKey]:
    """Prefix-cache keys of all blocks that the request will fill, from its segments.

    They stand in for hashes of tokens, which a workload has none of: equal keys mean equal content
    up to the block's end. A block counts to the segment in which it ends.

    Args:
        first_private: Key of the first block past the segments; those after it count up from
            there. No other request may use these keys. They start at 0 over all requests: a dict
            is fastest with small numbers in a row.
    """
    num_blocks = spec.total_tokens // block_size
    keys: list[BlockKey] = []
    end = 0
    for identity, tokens in spec.segments:
        end += tokens
        first = (identity + 1 if identity >= 0 else identity) * _STRIDE
        keys += range(first + len(keys), first + min(end // block_size, num_blocks))
    keys += range(first_private, first_private + num_blocks - len(keys))
    return keys


def make_request(
    spec: RequestSpec,
    params: SamplingParams,
    block_size: int,
    first_private: int,
    num_groups: int = 1,
    max_total_tokens: int | None = None,
) -> Request:
    """The request that the scheduler of its first replica runs.

    Args:
        params: Shared by all: ``ignore_eos``, so that only ``max_total_tokens`` ends a request.
        first_private: See ``block_keys``.
        num_groups: Groups of the model's layers; each has a block, and so a key, for each position.
        max_total_tokens: Where it ends here, if not where its answer does.
    """
    keys = block_keys(spec, block_size, first_private)
    if num_groups > 1:
        keys = [each for key in keys for each in keys_of_groups(key, num_groups)]
    resolved = ResolvedRequest(
        request_id=spec.request_id,
        parent_id=spec.request_id,
        prompt_token_ids=bytes(spec.prompt_tokens),  # ``TOKEN`` is 0: a byte a token
        params=params,
        max_total_tokens=max_total_tokens or spec.total_tokens,
        priority=spec.priority,
        tenant=f"tenant-{spec.tenant}",
    )
    return Request(resolved, arrival_time=spec.arrival, block_hashes=keys)


def resume_request(
    former: Request, spec: RequestSpec, now: float, num_done: int, max_total_tokens: int
) -> Request:
    """The request that its next replica's scheduler runs.

    Args:
        former: The one before.
        num_done: Tokens of its answer that were drawn before: they are part of the prompt.
    """
    resolved = replace(
        former.spec,
        prompt_token_ids=bytes(spec.prompt_tokens + num_done),
        max_total_tokens=max_total_tokens,
        waited=now - spec.arrival,
    )
    return Request(resolved, arrival_time=now, block_hashes=former.block_hashes)
