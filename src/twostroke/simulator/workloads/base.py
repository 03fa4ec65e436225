"""What a workload is: requests as lengths, identities of content, and arrival times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec


class RequestSpec(msgspec.Struct, frozen=True):
    """One request before it arrives.

    Attributes:
        number: Unique in the workload.
        arrival: Seconds since the start.
        segments: Content that others may share: (identity, tokens) in order of position, from the
            first token on. An identity stands for its segment and all tokens before it; equal
            identities mean equal tokens. Tokens past the segments are shared with no request.
        priority: Lower runs first (policy ``priority``).
        tenant: Number of the API key that sent it (policy ``fair``).
        session: Number of the conversation that it belongs to.
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

    ``total`` is how many there will be. ``arrivals`` yields the requests with fixed times; each
    call starts over. ``after`` returns the requests that follow when another ends at ``now``; none
    if ``reactive`` is false.
    """

    @property
    def total(self) -> int: ...

    @property
    def reactive(self) -> bool: ...

    def arrivals(self) -> Iterator[RequestSpec]: ...

    def after(self, spec: RequestSpec, now: float) -> Sequence[RequestSpec]: ...


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """Requests with fixed times, whatever the fleet does."""

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
