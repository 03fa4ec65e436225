"""A client of messages: validates calls, and keeps their streams and what the engine tells."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from twostroke.constraints.compiler import GrammarCompiler
from twostroke.core.config import EngineConfig, SchedulerConfig
from twostroke.core.errors import ErrorMessage, InvalidRequestError, ShuttingDownError
from twostroke.core.generation_request import GenerationRequest, ResolvedRequest
from twostroke.core.output import RequestOutput
from twostroke.core.prefix_hit import KVOffer
from twostroke.core.request import FinishReason
from twostroke.core.speculation_config import Speculation
from twostroke.engine.adapters.orders import AdapterOrder, AdapterReport, KnownAdapter
from twostroke.engine.adapters.registry import Adapters
from twostroke.engine.cache_orders import CacheOrder, CacheReport
from twostroke.engine.clients.answer_so_far import AnswerSoFar
from twostroke.engine.clients.cached_prefixes import CachedPrefixes
from twostroke.engine.clients.engine_view import EnginePart, view_of
from twostroke.engine.clients.facts import EngineFacts
from twostroke.engine.clients.kept_records import KeptRecords
from twostroke.engine.clients.link import EngineLink
from twostroke.engine.clients.loaded_model import LoadedModel
from twostroke.engine.clients.prompt_parts import prompt_parts
from twostroke.engine.clients.questions import Questions
from twostroke.engine.clients.queue_limit import QueueLimit
from twostroke.engine.clients.stream import AsyncStream
from twostroke.engine.clients.target_limit import TargetLimit
from twostroke.engine.clients.traced_calls import follow_call
from twostroke.engine.executor import ExecutorInfo
from twostroke.engine.intake import Intake, Seeds
from twostroke.engine.messages import (
    AbortRequest,
    AdaptersAnswer,
    AddRequest,
    AwaitRequest,
    CacheAnswer,
    EngineEnded,
    EngineMessage,
    EngineRecords,
    EngineReply,
    EngineStatus,
    ForgetRequest,
    Forgotten,
    NoteRefusal,
    RecordsAnswer,
    SnapshotAnswer,
    StepReport,
    TakeRecords,
)
from twostroke.observability.events import StepEvent
from twostroke.observability.kv_events import KVEventBatch
from twostroke.observability.snapshot import EngineSnapshot
from twostroke.observability.tracing.attempts import Outcome
from twostroke.observability.tracing.engine_timelines import EngineTimelines
from twostroke.scheduling.admission.ttft_targets import TTFTTargets
from twostroke.text.tokenizer import Tokenizer


class MessageClient:
    """Implements ``EngineClient`` for an engine behind a link. Also its ``Receiver``.

    The event loop's thread validates calls and sends messages. It gets each step's outputs back in
    one call; the engine's status is kept at once, by the thread that brings it.

    Args:
        config: That of the engine.
        facts: What the engine has said of itself.
        link: Carries messages to the engine, and its replies here.
        clock: Seconds on the engine's clock.
        adapters: Those of the engine.
        records: Keeps what the engine tells of its steps.
        stall_seconds: A step that takes longer than this makes the engine unhealthy until it ends.
        max_queued_requests: How many samples may wait for their first step; see ``QueueLimit``.
            What comes during a step waits until the next, however much room there is.
        seeds: For requests that bring none; by default its own, as configured.

    Attributes:
        info: The loaded model.
        model_name: What metrics call it.
        scheduler_config: The scheduler's settings.
        speculation: How tokens are guessed ahead, if they are.
        watched_targets: The targets that are watched, each as ``--target`` takes it.
        labels: Those of the engine's metrics.
        prefixes: What the engine's prefix cache holds.
        timelines: Notes what the engine does for calls that are traced, if they are.
        hand_on: Gives a request whose first tokens have come to another client, or says that it
            stays.
        hand_ahead: Told how many tokens of a request's prompt are computed while others are not.
    """

    def __init__(
        self,
        config: EngineConfig,
        facts: EngineFacts,
        link: EngineLink,
        *,
        clock: Callable[[], float],
        tokenizer: Tokenizer | None,
        grammars: GrammarCompiler | None,
        adapters: Adapters,
        records: KeptRecords,
        stall_seconds: float,
        max_queued_requests: int | None,
        seeds: Seeds | None = None,
    ) -> None:
        self.speculation: Speculation | None = config.speculation.resolve()
        self._seeds, self._clock = seeds or Seeds(config.model.seed), clock
        self._tokenizer, self._grammars = tokenizer, grammars
        self._adapters, self._records, self._link = adapters, records, link
        self._targets = TTFTTargets(config.observability.targets(), facts.model_name)
        self._max_queued_requests, self._stall_seconds = max_queued_requests, stall_seconds
        self._streams: dict[str, AsyncStream] = {}
        self._questions = Questions(lambda message: self._send(message))
        self._loop: asyncio.AbstractEventLoop | None = None
        self._draining = self._closed = False
        self._status = EngineStatus()
        self.timelines: EngineTimelines | None = None
        self.hand_on: Callable[[str, AsyncStream], bool] | None = None
        self.hand_ahead: Callable[[str, AsyncStream, int], None] | None = None
        self._leaving: dict[str, int] = {}  # handed on: samples that the engine has not ended yet
        self.meet(facts)

    def meet(self, facts: EngineFacts) -> None:
        """Go by what an engine has said of itself, which has no requests yet."""
        self._leaving.clear()
        self.info: ExecutorInfo = facts.info
        self.model_name = facts.model_name
        self.scheduler_config: SchedulerConfig = facts.scheduler_config
        self.watched_targets, self.labels = facts.watched_targets, facts.labels
        self._intake = Intake(
            facts.info,
            *(self._tokenizer, self._seeds, self._grammars, self._targets, self._adapters),
        )
        self._queue_limit = QueueLimit(self._max_queued_requests)
        self.prefixes = CachedPrefixes(facts.info, self._adapters)
        self._target_limit = TargetLimit(
            facts.scheduler_config,
            self._targets,
            self._clock,
            lambda refused: self._send(NoteRefusal(refused)),
            lambda call: self.prefixes.num_cached(self.prefixes.as_request(call)),
        )

    @property
    def status(self) -> EngineStatus:
        return self._status

    @property
    def tokenizer(self) -> Tokenizer:
        """The front end's own; an engine in this process makes its texts with the same one."""
        if self._tokenizer is None:
            raise InvalidRequestError("this engine has no tokenizer")
        return self._tokenizer

    def loaded_model(self) -> LoadedModel:
        """This engine, and what a front end needs beside it."""
        grammars = GrammarCompiler(self.tokenizer) if self._grammars is None else self._grammars
        return LoadedModel(self, self.tokenizer, grammars)

    def submit(self, request: GenerationRequest) -> AsyncStream:
        self.use_loop(asyncio.get_running_loop())
        if self._draining:
            what = "has been closed" if self._closed else "is shutting down"
            raise ShuttingDownError(f"the engine {what}", hint="retry against another server")
        if self.has(request.request_id):
            raise InvalidRequestError(
                f"request id {request.request_id!r} is in use", param="request_id"
            )
        if not request.follows:  # before the work: a refusal must cost little
            num_samples = request.params.n + request.num_following_samples
            self._queue_limit.check(request.tenant, num_samples)
            self._target_limit.check(request)
        self._check_alive()
        message = self._intake.prepare(request, self._clock())
        self._send(message)  # what cannot be sent raises, and nothing is noted of it
        self._queue_limit.add(request.tenant, request.params.n)
        self._target_limit.add(request, request.params.n)
        abort = AbortRequest(request.request_id)
        form, grammars = request.params.structured_outputs, self._grammars
        grammar = None if form is None or grammars is None else grammars.find(form)
        stream = AsyncStream(request, partial(self._send, abort), grammar, self._so_far(message))
        self._streams[request.request_id] = stream
        self.note_sent(message, stream)
        return stream

    def note_sent(self, message: AddRequest, stream: AsyncStream) -> None:
        """A call is with the engine, so far as it is not answered."""
        if self.timelines is not None:
            follow_call(self.timelines, message, stream, self.labels)

    @property
    def num_unfinished(self) -> int:
        """Requests whose outputs have not all come."""
        return len(self._streams)

    @property
    def num_waiting(self) -> int:
        """Samples that wait for their first step."""
        return self._queue_limit.num_waiting

    def unfinished(self) -> list[AsyncStream]:
        """Requests whose outputs have not all come, in order of arrival."""
        return list(self._streams.values())

    def has(self, request_id: str) -> bool:
        """Whether its engine has a request of that id."""
        return request_id in self._streams or request_id in self._leaving

    def expect(self, request_id: str, offer: KVOffer, request: ResolvedRequest | None) -> None:
        """Have its engine fetch what another has computed of a request that it is told of once."""
        self._send(AwaitRequest(request_id, offer, request))

    def expect_no_more(self, request_id: str) -> None:
        self._send(AbortRequest(request_id))

    def check_in_time(self, tenant: str, request_id: str, waited: float) -> None:
        self._target_limit.check_least(tenant, request_id, waited)

    def events(self, since: int = -1) -> list[StepEvent]:
        return self._records.events(since)

    def parts(self) -> list[EnginePart]:
        view = view_of(self.labels, self._status, self.unhealthy_reason() or "")
        return [EnginePart(view, self.events)]

    def kv_events(self, since: int = -1) -> list[KVEventBatch]:
        return self._records.kv_events(since)

    async def records(self) -> EngineRecords:
        if self._link.why_ended() is not None:
            return self._records.latest()
        self.use_loop(asyncio.get_running_loop())
        return await self._records.ask(lambda n: self._send(TakeRecords(n)))

    async def manage_cache(self, order: CacheOrder) -> CacheReport:
        self.use_loop(asyncio.get_running_loop())
        self._check_alive()
        self._check_answers()
        return await self._questions.manage_cache(order)

    @property
    def adapters(self) -> Mapping[str, KnownAdapter]:
        return self._adapters.known

    async def manage_adapters(self, order: AdapterOrder) -> AdapterReport:
        self.use_loop(asyncio.get_running_loop())
        self._check_alive()
        self._check_answers()
        return AdapterReport(await self._questions.manage_adapters(order))

    async def snapshot(self, *, with_blocks: bool = False) -> EngineSnapshot:
        self.use_loop(asyncio.get_running_loop())
        self._check_answers()
        return await self._questions.snapshot(with_blocks=with_blocks)

    def unhealthy_reason(self) -> str | None:
        status = self._status
        if status.error is not None:
            return status.error.message
        if (ended := self._link.why_ended()) is not None:
            return ended
        since = status.busy_since
        if since is not None and self._clock() - since > self._stall_seconds:
            return f"a step has been running for more than {self._stall_seconds:g} s"
        return None

    async def drain(self, timeout: float) -> None:
        self._draining = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while self._streams:
                    await asyncio.sleep(0.02)
        message = "the server shut down before the answer was complete"
        for request_id, stream in list(self._streams.items()):
            error = ErrorMessage.of(
                ShuttingDownError(message, hint="send the request again, to another server")
            )
            self._send(AbortRequest(request_id, error))
            # At once: the engine aborts after the step that it is in, which may outlast the server.
            stream.fail(error, FinishReason.ABORT)

    def close(self) -> None:
        """Stop the engine after its step, end what runs, and release its resources."""
        self._draining = self._closed = True
        self._link.close()

    def _send(self, message: EngineMessage) -> None:
        self._link.send(message)

    def _check_answers(self) -> None:
        """Raise EngineDeadError if nothing answers questions; a dead engine's thread still does."""

    def _so_far(self, message: AddRequest) -> AnswerSoFar | None:
        """What to keep of an answer; an engine in this process ends no sooner than its client."""
        return None

    def _check_alive(self) -> None:
        if self._status.error is not None:
            raise self._status.error.to_exception()

    def use_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """From now on outputs go to ``loop``; requests of a loop that is closed are aborted."""
        former, self._loop = self._loop, loop
        if former is loop:
            return
        self._link.use_loop(loop)
        if former is not None and former.is_closed():
            for request_id, stream in self._streams.items():
                stream.abandon()
                self._send(ForgetRequest(request_id))

    # ---- what comes back -------------------------------------------------------------------------

    def keep(self, reply: EngineReply) -> None:
        if isinstance(reply, StepReport):
            self._status = reply.status
            events = self._records.take(reply)
            if self.timelines is not None:
                for event in events:
                    self.timelines.on_step(event)
            self._queue_limit.num_left.update(reply.num_left)
            if reply.cached is not None:
                self.prefixes.mirror.apply(reply.cached)
            if reply.load is not None:
                self._target_limit.take(reply.load)
        elif isinstance(reply, RecordsAnswer) and reply.value is not None:
            self._records.keep(reply.value)

    def carry_out(self, reply: EngineReply) -> None:
        match reply:
            case StepReport():
                self._deliver(reply.outputs)
                self._tell_parts(reply.events)
            case Forgotten():
                self._streams.pop(reply.request_id, None)
            case CacheAnswer() | AdaptersAnswer() | SnapshotAnswer():
                self._questions.answer(reply)
            case RecordsAnswer():
                self._records.answers.put(reply.number, reply.value, reply.error)
            case EngineEnded():
                self._fail_all(reply.error)

    def _deliver(self, outputs: list[RequestOutput]) -> None:
        if self.timelines is not None:  # before a stream's end ends its trace
            self.timelines.on_outputs(outputs)
        for output in outputs:
            if output.request_id in self._leaving:
                self._note_left(output)
                continue
            # The id stays taken until the engine's last output: a step in flight still uses it.
            if (stream := self._streams.get(output.request_id)) and stream.put(output):
                del self._streams[output.request_id]
        if self.hand_on is not None:
            for request_id in dict.fromkeys(output.request_id for output in outputs):
                self._hand_on(request_id, self.hand_on)

    def _tell_parts(self, events: Sequence[StepEvent]) -> None:
        if (tell := self.hand_ahead) is None:
            return
        for request_id, num_tokens in prompt_parts(events):
            stream = self._streams.get(request_id)
            if stream is not None and not stream.aborted:
                tell(request_id, stream, num_tokens)

    def _hand_on(self, request_id: str, hand_on: Callable[[str, AsyncStream], bool]) -> None:
        stream = self._streams.get(request_id)
        if stream is None or stream.aborted or stream.so_far is None:
            return
        if stream.so_far.has_begun and hand_on(request_id, stream):
            self._let_go(request_id)
            self._leaving[request_id] = stream.num_unfinished
            self._send(AbortRequest(request_id))

    def _let_go(self, request_id: str) -> None:
        """Another client has a request from now on."""
        del self._streams[request_id]
        if self.timelines is not None:
            self.timelines.end(request_id, Outcome.HANDED_ON)

    def _note_left(self, output: RequestOutput) -> None:
        """Drop what comes of a request that was handed on, until nothing more can come."""
        if output.finish_reason is not None:
            self._leaving[output.request_id] -= 1
            if not self._leaving[output.request_id]:
                del self._leaving[output.request_id]

    def _fail_all(self, error: ErrorMessage) -> None:
        failed, self._streams = self._streams, {}
        for stream in failed.values():
            stream.fail(error)
        self._fail_questions(error)

    def _fail_questions(self, error: ErrorMessage) -> None:
        self._questions.fail_all(error)
        self._records.answers.fail_all(error)
