"""On whose behalf a request runs: what is stamped on it on its way to the engine."""

from __future__ import annotations

import time
from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from twostroke.core.generation_request import GenerationRequest
from twostroke.engine.clients.base import EngineClient, OutputStream
from twostroke.engine.executor import ExecutorInfo
from twostroke.engine.messages import EngineRecords
from twostroke.http.request_id import ARRIVED_KEY
from twostroke.observability.targets.exposition import render_tenant_targets
from twostroke.observability.targets.watch import TargetReport
from twostroke.observability.tracing import names
from twostroke.observability.tracing.trace import NOT_TRACED, Trace, trace_of

if TYPE_CHECKING:
    from twostroke.gateway.limits import RateLimitSnapshot
    from twostroke.gateway.tally import Tally
    from twostroke.gateway.usage import UsageBook

SCOPE_KEY = "twostroke.caller"
# Of an ASGI scope: in whose background the server itself makes the call, see ``Background``.
BACKGROUND_KEY = "twostroke.background"
# What is in the background runs behind all else under ``--policy priority``; among themselves such
# requests keep the order of their priorities, up to this.
BEHIND_ALL = 2**32


class Background(Protocol):
    """A call that the server makes itself, on behalf of a tenant who does not wait for it.

    Only the server puts one into a scope: no key is asked for.
    """

    @property
    def tenant(self) -> str: ...

    def submitted(self, stream: OutputStream, num_prompt_tokens: int) -> None:
        """A request of the call is on its way to the engine."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of one HTTP request.

    Attributes:
        tenant: The name of its key; empty where there are no keys.
        private_prefixes: Whether its cached prefixes are for its own requests alone.
        limits: What its rate limits left when the request arrived, if there are any.
        tally: What it has running, if its tokens are limited.
        usage: What all tenants have used, if there are keys.
        admin: Whether it may see what concerns all tenants.
        trace: This request's trace.
        arrived: When its call arrived, on the clock ``time.monotonic``; ``None``: just now.
        background: Where it does not wait for the answer.
    """

    tenant: str = ""
    private_prefixes: bool = False
    limits: RateLimitSnapshot | None = None
    tally: Tally | None = None
    usage: UsageBook | None = None
    admin: bool = True
    trace: Trace = NOT_TRACED
    arrived: float | None = None
    background: Background | None = None

    def metrics(self, records: EngineRecords) -> bytes:
        """The exposition that it may see: its own series, or everything."""
        own = b""
        if self.usage is not None:
            own = self.usage.render(None if self.admin else self.tenant)
            own += render_tenant_targets(self.targets(records))
        return (records.metrics if self.admin else b"") + own

    def targets(self, records: EngineRecords) -> list[TargetReport]:
        """The targets that it may see: its own, or all."""
        return [r for r in records.targets if self.admin or r.key == self.tenant]

    def load(self, total: int) -> int:
        """The unfinished requests that it may know of: its own, or ``total``."""
        if self.admin or self.usage is None:
            return total
        return self.usage.of(self.tenant).unfinished

    def charge(self, num_tokens: int) -> None:
        """Count tokens that no generation uses towards the caller's limit."""
        if self.tally is not None:
            self.tally.charge(num_tokens)

    def salt(self, client_salt: str) -> str:
        """The salt of its cached prefixes; those of two tenants differ, whatever clients send."""
        if not self.private_prefixes:
            return client_salt
        return f"{len(self.tenant)}:{self.tenant}{client_salt}"

    def submit(
        self, client: EngineClient, requests: Sequence[GenerationRequest]
    ) -> Iterator[OutputStream]:
        """Submit the requests of one call under the caller's name and salt, as it is iterated over.

        Raises:
            TokenRateError: Prompts and answers together may exceed what the caller's limit leaves;
                then nothing has been submitted.
            TwostrokeError: See ``EngineClient.submit``; the requests before it have been submitted.
        """
        self.trace.stage(names.PREPARE)
        reserved = self._reserve(client.info, requests) if self.tally is not None else ()
        for i, request in enumerate(requests):
            salt = self.salt(request.cache_salt)
            self.trace.follow(request.request_id, self.tenant)
            waited = 0.0 if self.arrived is None else time.monotonic() - self.arrived
            request = replace(request, tenant=self.tenant, cache_salt=salt, waited=waited)
            if self.background is not None and client.scheduler_config.policy == "priority":
                own = max(-BEHIND_ALL, min(request.priority, BEHIND_ALL))
                request = replace(request, priority=2 * BEHIND_ALL + own)
            stream = client.submit(request)
            if self.background is not None:
                self.background.submitted(stream, len(request.prompt_token_ids))
            if self.trace.is_recorded:
                stream.when_ended(self.trace.part_began())
            if self.tally is not None:
                self.tally.watch(stream, reserved[i])
            if self.usage is not None:
                self.usage.of(self.tenant).watch(stream)
            yield stream

    def _reserve(self, info: ExecutorInfo, requests: Sequence[GenerationRequest]) -> list[int]:
        """How many tokens each request may use: prompt, and ``max_tokens`` of each sample.

        Those without ``max_tokens`` need one token for each sample, and reserve as much of the
        context as is left to them all: a limit below the model's context refuses none for ever.
        """
        reserved = [_max_usage(info, request, info.max_model_len) for request in requests]
        if self.limits is None:
            return reserved
        needed = [_max_usage(info, request, 1) for request in requests]
        tokens_left = self.limits.check_tokens(sum(needed))
        if tokens_left is None:
            return reserved
        spare = tokens_left - sum(needed)
        for i in range(len(requests)):
            reserved[i] = min(reserved[i], needed[i] + spare)
            spare -= reserved[i] - needed[i]
        return reserved


def caller_of(scope: MutableMapping[str, Any]) -> Caller:
    """The sender of the request of this ASGI scope; an anonymous one where there is no gateway."""
    caller: Caller | None = scope.get(SCOPE_KEY)
    return replace(
        caller or Caller(trace=trace_of(scope)),
        arrived=scope.get(ARRIVED_KEY),
        background=scope.get(BACKGROUND_KEY),
    )


def _max_usage(info: ExecutorInfo, request: GenerationRequest, open_ended: int) -> int:
    """The most tokens that a request can use.

    Args:
        open_ended: Tokens of each answer without ``max_tokens``.
    """
    num_prompt_tokens, params = len(request.prompt_token_ids), request.params
    room = max(0, info.max_model_len - num_prompt_tokens)
    answer = open_ended if params.max_tokens is None else params.max_tokens
    return num_prompt_tokens + params.n * min(room, answer)
