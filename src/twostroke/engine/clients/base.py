"""What a front end sees of an engine, wherever it runs: submit, stream, abort, stats."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from twostroke.core.config import SchedulerConfig
from twostroke.core.output import RequestOutput
from twostroke.core.sampling_params import SamplingParams
from twostroke.engine.executor import ExecutorInfo
from twostroke.observability.events import SchedulerStats, StepEvent
from twostroke.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """One call of a client: a prompt as token ids, how to sample, and what sets it apart.

    Attributes:
        request_id: Unique among the requests in the engine.
        cache_salt: Cached prefixes are shared only between equal salts.
        priority: Lower runs first under ``--policy priority``.
        tenant: On whose behalf: ``--policy fair`` divides the engine among tenants. Empty if nobody
            said.
        labels: What the client calls its end user and the like; step events carry them, nothing
            else does.
        follows: One more prompt of a call whose first has been taken: a full queue refuses calls,
            not parts of them.
    """

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams = field(default_factory=SamplingParams)
    priority: int = 0
    cache_salt: str = ""
    tenant: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    follows: bool = False


class ChargedTokens(NamedTuple):
    """What a request made the engine do: its prompt counts once whatever ``n``, cached tokens
    included.
    """

    prompt_tokens: int
    output_tokens: int

    @property
    def total(self) -> int:
        return self.prompt_tokens + self.output_tokens


class OutputStream(Protocol):
    """The outputs of one request, in order, all its samples interleaved; ends after the last
    sample's last output.

    A failure of the request arrives as an output with ``finish_reason`` ``ERROR``, never as a
    silent end. Outputs are heard or iterated over, not both.
    """

    def listen(self, hear: Callable[[RequestOutput], None]) -> None:
        """Have ``hear`` called with each output: at once with those that have come, then with each
        as it comes.

        That is on the event loop's thread, in the call that brings the outputs of a step, so
        ``hear`` must be short. If it raises, the request is aborted. After ``abort`` it hears
        nothing.
        """

    def __aiter__(self) -> AsyncIterator[RequestOutput]: ...

    def abort(self) -> None:
        """End all samples now and free what they hold; harmless after the end."""

    @property
    def usage(self) -> ChargedTokens:
        """What the request has used so far, whether or not anybody has read its outputs."""

    def when_ended(self, tell: Callable[[ChargedTokens], None]) -> None:
        """Have ``tell`` called once, on the event loop's thread, when the engine has let go of the
        request.

        That is after its last output, a failure, or an abort: what the step in flight still gave is
        counted.
        """


class EngineClient(Protocol):
    """``submit`` validates at once: bad or oversized requests raise before anything is queued."""

    @property
    def info(self) -> ExecutorInfo: ...

    @property
    def scheduler_config(self) -> SchedulerConfig: ...

    @property
    def tokenizer(self) -> Tokenizer: ...

    def submit(self, request: GenerationRequest) -> OutputStream:
        """Queue a request; call on the event loop's thread.

        Raises:
            InvalidRequestError: A field is out of range, or the request can never fit.
            QueueFullError: Too many requests wait.
            ShuttingDownError: The engine is draining.
            EngineDeadError: The engine has failed for good.
        """

    def stats(self) -> SchedulerStats: ...

    def events(self, since: int = -1) -> list[StepEvent]:
        """Recorded step events with ``step > since``."""

    def unhealthy_reason(self) -> str | None:
        """``None`` while the engine makes progress; else one sentence that says what is wrong."""

    def render_metrics(self) -> tuple[bytes, str]:
        """Prometheus exposition text and its content type."""

    async def drain(self, timeout: float) -> None:
        """Take no new work, let the running requests finish for ``timeout`` seconds, then abort the
        rest.
        """
