"""What came of a fleet's requests, and of itself."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from twostroke.observability.latency import time_per_output_token
from twostroke.simulator.deployment.fleet_options import Role
from twostroke.simulator.fleet.pool import ScalingEvent
from twostroke.simulator.fleet.step_log import StepLog


class RequestResult(msgspec.Struct, frozen=True):
    """One finished request; times in seconds since the start."""

    number: int
    replica: int
    arrival: float
    scheduled: float
    first_token: float
    finish: float
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    preemptions: int
    priority: int = 0
    tenant: int = 0

    @property
    def ttft(self) -> float:
        return self.first_token - self.arrival

    @property
    def tpot(self) -> float:
        """Mean time per output token after the first; 0 if there is no second."""
        return time_per_output_token(self.first_token, self.finish, self.output_tokens)

    @property
    def e2el(self) -> float:
        return self.finish - self.arrival


@dataclass(slots=True)
class FleetResult:
    """What a simulation produced, complete or not.

    Attributes:
        requests: Those that finished, by number.
        refused: Numbers of those that no replica could ever hold.
        refused_early: Numbers of those that would have missed their targets.
        logs: One per replica that there ever was.
        blocks: How many KV blocks each of them has.
        roles: What each of them does.
        replica_seconds: How long replicas were paid for, all together.
        replicas_most: Most of them at once.
        scaling: What an autoscaler decided.
        prefix_queries: Tokens looked up in the prefix caches.
        prefix_hits: Tokens found there.
        num_moved: How often a request went on in another replica, as its own had died.
        num_handed_on: Prompts that were computed apart from their answers.
        interrupted: Ctrl-C stopped it before the end.
    """

    requests: list[RequestResult] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)
    refused_early: list[int] = field(default_factory=list)
    logs: list[StepLog] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    roles: list[Role] = field(default_factory=list)
    total_blocks: int = 0
    block_size: int = 0
    replica_seconds: float = 0.0
    replicas_most: int = 0
    scaling: list[ScalingEvent] = field(default_factory=list)
    prefix_queries: int = 0
    prefix_hits: int = 0
    num_preemptions: int = 0
    num_moved: int = 0
    num_handed_on: int = 0
    interrupted: bool = False
