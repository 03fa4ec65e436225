"""What a workload is: requests as lengths and identities of content, with the times at which they
come.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from twostroke.core.request import BlockKey, Request
from twostroke.core.sampling_params import SamplingParams
from twostroke.simulator.fleet.executor import TOKEN

# Between the keys of two identities: more than all requests have blocks. Its last bits are mixed,
# as dicts go by those.
_STRIDE = 2_654_435_761


class RequestSpec(msgspec.Struct, frozen=True):
    """One request before it arrives.

    Attributes:
        number: Unique in the workload.
        arrival: Seconds since the start.
        segments: Content that others may share: (identity, tokens) in order of position, from the
            first token on. An identity stands for its segment and for everything before it; equal
            ones mean equal tokens. What lies past them is the request's own.
        priority: Lower runs first (policy ``priority``).
        tenant: Number of the API key that sent it (policy ``fair``).
        session: Which conversation it belongs to.
    """

    number: int
    arrival: float
    prompt_tokens: int
    output_tokens: int
    segments: tuple[tuple[int, int], ...] = ()
    priority: int = 0
    session: int | None = None
    tenant: int = 0

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.output_tokens

    @property
    def request_id(self) -> str:
        return f"r{self.number}"


class Workload(Protocol):
    """Requests, in order of arrival.

    ``total`` is how many there will be. ``arrivals`` gives those whose time is known from the
    start, each call from the beginning. ``after`` gives those that another one's end at ``now``
    sets off, and none where ``reactive`` is false.
    """

    @property
    def total(self) -> int: ...

    @property
    def reactive(self) -> bool: ...

    def arrivals(self) -> Iterator[RequestSpec]: ...

    def after(self, spec: RequestSpec, now: float) -> Sequence[RequestSpec]: ...


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """Requests come when they come, whatever becomes of the others."""

    specs: Sequence[RequestSpec]

    @property
    def total(self) -> int:
        return len(self.specs)

    @property
    def reactive(self) -> bool:
        return False

    def arrivals(self) -> Iterator[RequestSpec]:
        return iter(self.specs)

    def after(self, spec: RequestSpec, now: float) -> Sequence[RequestSpec]:
        return ()


def block_keys(spec: RequestSpec, block_size: int, own: int) -> list[BlockKey]:
    """Prefix-cache keys of all blocks that the request will ever fill, as the workload knows its
    content.

    They stand in for hashes of tokens, which there are none of: equal keys mean equal content up to
    the block's end. A block counts to the segment in which it ends.

    Args:
        own: The least number that no other request's own blocks have, from 0 on: dicts like small
            numbers in a row.
    """
    num_blocks = spec.total_tokens // block_size
    keys: list[BlockKey] = []
    end = 0
    for identity, tokens in spec.segments:
        end += tokens
        first = (identity + 1 if identity >= 0 else identity) * _STRIDE
        keys += range(first + len(keys), first + min(end // block_size, num_blocks))
    keys += range(own, own + num_blocks - len(keys))
    return keys


def make_request(spec: RequestSpec, params: SamplingParams, block_size: int, own: int) -> Request:
    """What the scheduler runs.

    Args:
        params: Shared by all: ``ignore_eos``, so that only ``max_total_tokens`` ends a request.
        own: As in ``block_keys``.
    """
    return Request(
        request_id=spec.request_id,
        token_ids=[TOKEN] * spec.prompt_tokens,
        num_prompt_tokens=spec.prompt_tokens,
        params=params,
        max_total_tokens=spec.total_tokens,
        arrival_time=spec.arrival,
        priority=spec.priority,
        tenant=f"tenant-{spec.tenant}",
        block_hashes=block_keys(spec, block_size, own),
    )
