"""On whose behalf a request runs: what is stamped on it on its way to the engine."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from twostroke.core.config import SchedulerConfig
from twostroke.engine.clients.base import EngineClient, OutputStream
from twostroke.engine.executor import ExecutorInfo
from twostroke.engine.messages import GenerationRequest
from twostroke.observability.events import SchedulerStats, StepEvent
from twostroke.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from twostroke.gateway.limits import Standing
    from twostroke.gateway.tally import Tally

SCOPE_KEY = "twostroke.caller"


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent one HTTP request.

    Attributes:
        tenant: The name of its key; empty where there are no keys.
        private_prefixes: Whether its cached prefixes are for its own requests alone.
        standing: Where its limits stand, if there are any.
        tally: What it has running, if its tokens are counted.
    """

    tenant: str
    private_prefixes: bool
    standing: Standing | None = None
    tally: Tally | None = None

    def salt(self, own: str) -> str:
        """The salt of its cached prefixes; ``own`` is the one that the client gave. No two tenants
        can meet in it.
        """
        return f"{len(self.tenant)}:{self.tenant}{own}" if self.private_prefixes else own


def client_for(scope: MutableMapping[str, Any], client: EngineClient) -> EngineClient:
    """``client`` on behalf of whoever sent the request of this ASGI scope; itself where no gateway
    stands before it.
    """
    caller: Caller | None = scope.get(SCOPE_KEY)
    return client if caller is None else CallerClient(client, caller)


def check_together(client: EngineClient, requests: Sequence[GenerationRequest]) -> None:
    """See that the caller's limit has room for all of a call's requests, before the first is
    submitted.

    Raises:
        TokenRateError: It has not.
    """
    if isinstance(client, CallerClient):
        client.reserve(requests)


class CallerClient:
    """Implements ``EngineClient``: the engine as one caller may use it."""

    def __init__(self, client: EngineClient, caller: Caller) -> None:
        self._client = client
        self._caller = caller
        self._reserved: dict[str, int] = {}

    @property
    def info(self) -> ExecutorInfo:
        return self._client.info

    @property
    def scheduler_config(self) -> SchedulerConfig:
        return self._client.scheduler_config

    @property
    def tokenizer(self) -> Tokenizer:
        return self._client.tokenizer

    def submit(self, request: GenerationRequest) -> OutputStream:
        """As ``EngineClient.submit``, under the caller's name and salt.

        Raises:
            TokenRateError: Prompt and answer may exceed what the caller's limit leaves.
        """
        caller = self._caller
        if request.request_id not in self._reserved:
            self.reserve([request])
        reserved = self._reserved.pop(request.request_id)
        request = replace(request, tenant=caller.tenant, cache_salt=caller.salt(request.cache_salt))
        stream = self._client.submit(request)
        if caller.tally is not None:
            caller.tally.watch(stream, reserved)
        return stream

    def reserve(self, requests: Sequence[GenerationRequest]) -> None:
        """Note how many tokens each request may use: prompt, and ``max_tokens`` of each sample.

        Those without ``max_tokens`` need one token for each sample, and reserve as much of the
        context as is left to them all: a limit below the model's context refuses none for ever.

        Raises:
            TokenRateError: Together they exceed what the caller's limit leaves.
        """
        least = [self._tokens(request, 1) for request in requests]
        most = [self._tokens(request, self.info.max_model_len) for request in requests]
        standing = self._caller.standing
        if standing is not None and (left := standing.tokens_left()) is not None:
            standing.check_tokens(sum(least))
            spare = left - sum(least)
            for i in range(len(requests)):
                most[i] = min(most[i], least[i] + spare)
                spare -= most[i] - least[i]
        self._reserved |= {
            request.request_id: tokens for request, tokens in zip(requests, most, strict=True)
        }

    def _tokens(self, request: GenerationRequest, open_ended: int) -> int:
        """The most that a request can use, if one without ``max_tokens`` answers with
        ``open_ended`` tokens.
        """
        prompt, params = len(request.prompt_token_ids), request.params
        room = max(0, self.info.max_model_len - prompt)
        return prompt + params.n * min(
            room, open_ended if params.max_tokens is None else params.max_tokens
        )

    def stats(self) -> SchedulerStats:
        return self._client.stats()

    def events(self, since: int = -1) -> list[StepEvent]:
        return self._client.events(since)

    def unhealthy_reason(self) -> str | None:
        return self._client.unhealthy_reason()

    def render_metrics(self) -> tuple[bytes, str]:
        return self._client.render_metrics()

    async def drain(self, timeout: float) -> None:
        await self._client.drain(timeout)
