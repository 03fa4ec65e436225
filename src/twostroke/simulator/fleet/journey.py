"""A request's way through a fleet, from replica to replica."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from twostroke.core.request import Request
from twostroke.simulator.deployment.fleet_options import Role
from twostroke.simulator.fleet.peers import Sender
from twostroke.simulator.fleet.result import RequestResult
from twostroke.simulator.workloads.base import RequestSpec


@dataclass(slots=True)
class Journey:
    """Where a request is, and what it has from replicas that it has left.

    Attributes:
        request: What the scheduler of its latest replica has, or had.
        replica: The index of the one that has it.
        role: What it is there for.
        num_done: Tokens of its answer that the client has.
        last_token: When the latest of those came.
        sender: The replica that has computed its prompt, for the next.
        parts: When steps before the last one of its prompt ended, and its tokens computed by then.
        scheduled: Its first step anywhere.
        first_token: When its client got one.
        cached: Tokens that its first replica found in its cache.
    """

    spec: RequestSpec
    request: Request | None = None
    replica: int = -1
    role: Role = "both"
    num_done: int = 0
    last_token: float = 0.0
    sender: Sender | None = None
    parts: Sequence[tuple[float, int]] = ()
    scheduled: float | None = None
    first_token: float | None = None
    cached: int | None = None
    preemptions: int = 0

    @property
    def num_known(self) -> int:
        """Tokens of its prompt, and of its answer so far."""
        return self.spec.prompt_tokens + self.num_done

    def leave(self, num_tokens: int, now: float) -> float | None:
        """Note what its replica has done for it, as it leaves that.

        Args:
            num_tokens: Tokens that the client got.
            now: When it got the last of them.

        Returns:
            Seconds between two of its tokens that came from different replicas, if it did.
        """
        request, gap = self.request, None
        assert request is not None
        if num_tokens and request.first_token_time is not None:
            if self.num_done:
                gap = request.first_token_time - self.last_token
            if self.first_token is None:
                self.first_token = request.first_token_time
            self.last_token = now
        if self.scheduled is None:
            self.scheduled = request.first_scheduled_time
        if self.cached is None and request.first_scheduled_time is not None:
            self.cached = request.num_cached_tokens
        self.num_done += num_tokens
        self.preemptions += request.num_preemptions
        self.sender = None
        return gap

    def result(self, finish: float) -> RequestResult:
        """The request as a report shows it, when it has ended."""
        spec = self.spec
        return RequestResult(
            number=spec.number,
            replica=self.replica,
            arrival=spec.arrival,
            scheduled=self.scheduled or 0.0,
            first_token=self.first_token or 0.0,
            finish=finish,
            prompt_tokens=spec.prompt_tokens,
            output_tokens=self.num_done,
            cached_tokens=self.cached or 0,
            preemptions=self.preemptions,
            priority=spec.priority,
            tenant=spec.tenant,
        )
