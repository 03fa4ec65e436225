"""An engine that answers from a script: for tests of HTTP, without torch or a scheduler."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field

from fastapi import FastAPI

from tests.text.tiny_tokenizers import byte_level
from twostroke.constraints.compiler import GrammarCompiler
from twostroke.core.config import SchedulerConfig
from twostroke.core.errors import (
    ErrorMessage,
    InvalidRequestError,
    RequestTooLargeError,
    TwostrokeError,
)
from twostroke.core.generation_request import GenerationRequest
from twostroke.core.logprobs import PositionLogprobs, TokenLogprob
from twostroke.core.output import RequestOutput
from twostroke.core.request import FinishReason
from twostroke.core.speculation_config import Speculation
from twostroke.engine.adapters.orders import AdapterOrder, AdapterReport, KnownAdapter
from twostroke.engine.cache_orders import CacheOrder, CacheReport
from twostroke.engine.clients.base import ChargedTokens
from twostroke.engine.clients.engine_view import EnginePart, EngineView
from twostroke.engine.clients.loaded_model import LoadedModel
from twostroke.engine.executor import ExecutorInfo
from twostroke.engine.messages import EngineRecords, EngineStatus
from twostroke.observability.events import SchedulerStats, StepEvent
from twostroke.observability.kv_events import KVEventBatch
from twostroke.observability.snapshot import EngineSnapshot
from twostroke.text.tokenizer import Tokenizer

TEMPLATE = """\
{% for m in messages %}{{ m.role }}: {{ m.content }}
{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"""


@dataclass
class Script:
    """What the engine answers to every request."""

    pieces: tuple[str, ...] = ("the ", "quick ", "brown ", "fox")
    finish_reason: FinishReason = FinishReason.STOP
    stop_reason: str | int | None = None
    cached_tokens: int = 0
    seconds_per_step: float = 0.0
    error: TwostrokeError | None = None
    error_at: int = 0
    endless: bool = False
    refuse: TwostrokeError | None = None
    refuse_early: Exception | None = None
    max_model_len: int = 100


@dataclass
class ScriptedEngine:
    """Implements ``EngineClient``; keeps what was submitted and aborted."""

    script: Script = field(default_factory=Script)
    scheduler_config: SchedulerConfig = field(default_factory=SchedulerConfig)
    speculation: Speculation | None = None
    watched_targets: list[str] = field(default_factory=list)
    unhealthy: str | None = None
    submitted: list[GenerationRequest] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    finished: list[str] = field(default_factory=list)
    drained_with: float | None = None
    closed: bool = False
    template: str = TEMPLATE
    applications: dict[str, FastAPI] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self._tokenizer = Tokenizer(byte_level(), chat_templates={"default": self.template})
        self._grammars = GrammarCompiler(self._tokenizer)

    @property
    def info(self) -> ExecutorInfo:
        return ExecutorInfo(
            model_id="scripted",
            vocab_size=340,
            max_model_len=self.script.max_model_len,
            num_blocks=max(40, self.script.max_model_len // 4),
            block_size=4,
        )

    @property
    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    @property
    def grammars(self) -> GrammarCompiler:
        return self._grammars

    def submit(self, request: GenerationRequest) -> ScriptedStream:
        if self.script.refuse is not None:
            raise self.script.refuse
        request.params.check_vocabulary(self.info.vocab_size)
        if not request.prompt_token_ids:
            raise InvalidRequestError("the prompt is empty", param="prompt")
        needed = len(request.prompt_token_ids) + (request.params.max_tokens or 1)
        if needed > self.info.max_model_len:
            raise RequestTooLargeError(
                "too long",
                needed=needed,
                available=self.info.max_model_len,
                param="prompt",
                hint="shorten it",
            )
        self.submitted.append(request)
        return ScriptedStream(self, request)

    def check_in_time(self, tenant: str, request_id: str, waited: float) -> None:
        if self.script.refuse_early is not None:
            raise self.script.refuse_early

    def loaded_model(self) -> LoadedModel:
        return LoadedModel(self, self.tokenizer, self.grammars)

    @property
    def status(self) -> EngineStatus:
        num_running = len(self.submitted) - len(self.finished) - len(self.aborted)
        return EngineStatus(SchedulerStats(num_running=num_running))

    def events(self, since: int = -1) -> list[StepEvent]:
        return []

    def parts(self) -> list[EnginePart]:
        return [EnginePart(EngineView("scripted", "0", "ready"), self.events)]

    def kv_events(self, since: int = -1) -> list[KVEventBatch]:
        raise InvalidRequestError("it publishes no KV events")

    async def manage_cache(self, order: CacheOrder) -> CacheReport:
        return CacheReport(block_size=4, tiers=[])

    adapters: Mapping[str, KnownAdapter] = field(default_factory=dict)

    async def manage_adapters(self, order: AdapterOrder) -> AdapterReport:
        raise InvalidRequestError("it has no adapters")

    async def snapshot(self, *, with_blocks: bool = False) -> EngineSnapshot:
        now = time.monotonic()
        return EngineSnapshot(time=now, unix_time=time.time(), running=[], waiting=[], ended=[])

    def unhealthy_reason(self) -> str | None:
        return self.unhealthy

    async def records(self) -> EngineRecords:
        return EngineRecords(b"vllm:num_requests_running 0\n", "text/plain; version=0.0.4")

    async def drain(self, timeout: float) -> None:
        self.drained_with = timeout
        while self.status.stats.num_running > 0:
            await asyncio.sleep(0.01)

    def close(self) -> None:
        self.closed = True


class ScriptedStream:
    """Implements ``OutputStream``."""

    def __init__(self, engine: ScriptedEngine, request: GenerationRequest) -> None:
        self._engine = engine
        self._request = request
        self._usage = ChargedTokens(0, 0)
        self._on_end: list[Callable[[ChargedTokens], None]] = []

    @property
    def usage(self) -> ChargedTokens:
        return self._usage

    def when_ended(self, on_end: Callable[[ChargedTokens], None]) -> None:
        self._on_end.append(on_end)

    def abort(self) -> None:
        request_id = self._request.request_id
        if request_id not in self._engine.finished and request_id not in self._engine.aborted:
            self._engine.aborted.append(request_id)
            self._end()

    def _end(self) -> None:
        callbacks, self._on_end = self._on_end, []
        for on_end in callbacks:
            on_end(self._usage)

    def listen(self, on_output: Callable[[RequestOutput], None]) -> None:
        # Kept here: the event loop holds its tasks weakly.
        self._passing = asyncio.ensure_future(self._pass_outputs(on_output))

    async def _pass_outputs(self, on_output: Callable[[RequestOutput], None]) -> None:
        async for output in self:
            if self._request.request_id in self._engine.aborted:
                return
            on_output(output)

    async def __aiter__(self) -> AsyncIterator[RequestOutput]:
        script, params = self._engine.script, self._request.params
        step = 0
        pieces = script.pieces[: params.max_tokens]
        while step < len(pieces) or script.endless:
            await asyncio.sleep(script.seconds_per_step)
            if script.error is not None and step == script.error_at:
                self._end()
                yield self._output(0, "", FinishReason.ERROR, 0)
                return
            last = step == len(pieces) - 1 and not script.endless
            for index in range(params.n):
                text = pieces[step % len(pieces)]
                yield self._output(index, text, self._reason(len(pieces)) if last else None, step)
            step += 1
        self._engine.finished.append(self._request.request_id)
        self._end()

    def _reason(self, length: int) -> FinishReason:
        return (
            self._engine.script.finish_reason
            if length == len(self._engine.script.pieces)
            else FinishReason.LENGTH
        )

    def _output(
        self, index: int, text: str, reason: FinishReason | None, step: int
    ) -> RequestOutput:
        script, request = self._engine.script, self._request
        tokens = self._engine.tokenizer.encode(text[:100])[:1]  # one token, however long its text
        self._usage = ChargedTokens(
            len(request.prompt_token_ids), self._usage.output_tokens + len(tokens)
        )
        logprobs = request.params.logprobs
        prompt_logprobs = request.params.prompt_logprobs
        output = RequestOutput(
            request_id=request.request_id,
            index=index,
            token_ids=tokens,
            num_prompt_tokens=len(request.prompt_token_ids),
            num_cached_tokens=script.cached_tokens,
            text=text,
            finish_reason=reason,
        )
        if logprobs is not None:
            output.logprobs = [position(token, logprobs) for token in tokens]
        if prompt_logprobs is not None and step == 0 and index == 0:
            output.prompt_logprobs = [
                position(token, prompt_logprobs) for token in request.prompt_token_ids[1:]
            ]
        if reason is FinishReason.ERROR:
            output.error = None if script.error is None else ErrorMessage.of(script.error)
        elif reason is not None:
            output.stop_reason = script.stop_reason
        return output


def position(token: int, top: int) -> PositionLogprobs:
    """The chosen token is the likeliest, its neighbours follow."""
    ranked = [TokenLogprob((token + i) % 300, -0.5 - i, i + 1) for i in range(max(top, 1))]
    return PositionLogprobs(ranked[0], ranked[:top])
