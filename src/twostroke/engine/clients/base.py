"""What a front end sees of an engine, wherever it runs: submit, stream, abort, status."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import NamedTuple, Protocol

from twostroke.core.config import SchedulerConfig
from twostroke.core.generation_request import GenerationRequest
from twostroke.core.output import RequestOutput
from twostroke.core.speculation_config import Speculation
from twostroke.engine.adapters.orders import AdapterOrder, AdapterReport, KnownAdapter
from twostroke.engine.cache_orders import CacheOrder, CacheReport
from twostroke.engine.clients.engine_view import EnginePart
from twostroke.engine.executor import ExecutorInfo
from twostroke.engine.messages import EngineRecords, EngineStatus
from twostroke.observability.events import StepEvent
from twostroke.observability.kv_events import KVEventBatch
from twostroke.observability.snapshot import EngineSnapshot


class ChargedTokens(NamedTuple):
    """What a request made the engine do. Its prompt counts once whatever ``n``, cached or not."""

    prompt_tokens: int
    output_tokens: int

    @property
    def total(self) -> int:
        return self.prompt_tokens + self.output_tokens


class OutputStream(Protocol):
    """The outputs of one request, in order, all its samples interleaved.

    It ends after the last sample's last output. A failure of the request arrives as an output with
    ``finish_reason`` ``ERROR``, never as a silent end. Outputs are listened to or iterated over,
    not both.
    """

    def listen(self, on_output: Callable[[RequestOutput], None]) -> None:
        """Have ``on_output`` called with each output: those that have come, then each as it comes.

        That is on the event loop's thread, in the call that brings the outputs of a step, so it
        must be short. If it raises, the request is aborted. After ``abort`` it is not called.
        """

    def __aiter__(self) -> AsyncIterator[RequestOutput]: ...

    def abort(self) -> None:
        """End all samples now and free what they hold; harmless after the end."""

    @property
    def usage(self) -> ChargedTokens:
        """What the request has used so far, whether or not its outputs have been read."""

    def when_ended(self, on_end: Callable[[ChargedTokens], None]) -> None:
        """Have ``on_end`` called once, on the event loop's thread, when the engine is through.

        That is after its last output, a failure, or an abort: what the step in flight still gave is
        counted.
        """


class EngineClient(Protocol):
    """An engine by messages: it hands out values, never an object of the engine.

    ``submit`` validates at once: bad or oversized requests raise before anything is queued. Methods
    that are no coroutines answer from what the engine has told already.
    """

    @property
    def info(self) -> ExecutorInfo: ...

    @property
    def scheduler_config(self) -> SchedulerConfig: ...

    @property
    def speculation(self) -> Speculation | None:
        """How tokens are guessed ahead, if they are."""
        ...

    @property
    def status(self) -> EngineStatus:
        """What the engine last said of itself: before a step, after it, or after an abort."""
        ...

    @property
    def watched_targets(self) -> list[str]:
        """The targets that are watched, each as ``--target`` takes it."""
        ...

    def submit(self, request: GenerationRequest) -> OutputStream:
        """Queue a request; call on the event loop's thread.

        Raises:
            InvalidRequestError: A field is out of range, or the request can never fit.
            QueueFullError: Too many requests wait, and the tenant has more than its share of them.
            ShuttingDownError: The engine is draining.
            EngineDeadError: The engine has failed for good.
        """

    def check_in_time(self, tenant: str, request_id: str, waited: float) -> None:
        """Refuse a call of which nothing is known yet, if its first token would come too late.

        Args:
            waited: Seconds since it arrived.

        Raises:
            PredictedLateError: Even that of the least call would.
        """

    def events(self, since: int = -1) -> list[StepEvent]:
        """Recorded step events with ``step > since``."""

    def parts(self) -> list[EnginePart]:
        """The engines that answer as this one: itself, or several behind a router."""
        ...

    def kv_events(self, since: int = -1) -> list[KVEventBatch]:
        """What the KV cache has stored and removed, in the batches after number ``since``.

        Raises:
            InvalidRequestError: That is not published (``--kv-events``).
        """

    async def manage_cache(self, order: CacheOrder) -> CacheReport:
        """Look at the prefix cache, pin in it or empty it; call on the event loop's thread.

        Raises:
            InvalidRequestError: It cannot be done.
            EngineDeadError: The engine has failed for good, or does not answer.
        """
        ...

    @property
    def adapters(self) -> Mapping[str, KnownAdapter]:
        """The LoRA adapters that requests may name."""
        ...

    async def manage_adapters(self, order: AdapterOrder) -> AdapterReport:
        """Load an adapter or unload one; call on the event loop's thread.

        Raises:
            InvalidRequestError: It cannot be done.
            EngineDeadError: The engine has failed for good, or does not answer.
        """
        ...

    async def records(self) -> EngineRecords:
        """Metrics and targets between two steps; call on the event loop's thread.

        While a step lasts longer than a second, and after the engine's end, they are those that it
        sent last.

        Raises:
            EngineError: They cannot be shown.
        """
        ...

    async def snapshot(self, *, with_blocks: bool = False) -> EngineSnapshot:
        """What runs and waits between two steps, and with blocks what the KV cache holds.

        Raises:
            EngineDeadError: The engine does not answer.
        """
        ...

    def unhealthy_reason(self) -> str | None:
        """``None`` while the engine makes progress; else one sentence that says what is wrong."""

    async def drain(self, timeout: float) -> None:
        """Take no new work, and end what runs.

        Running requests may finish for ``timeout`` seconds; then the rest is aborted.
        """

    def close(self) -> None:
        """End the engine after its step, and what runs in it."""
