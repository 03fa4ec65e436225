"""One response while it is made: outputs in, events and the response object out."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence

from twostroke.core.errors import TwostrokeError
from twostroke.core.output import RequestOutput
from twostroke.core.request import FinishReason
from twostroke.server.generation.generation import Generation
from twostroke.server.generation.memory_limits import num_output_entries
from twostroke.server.http.sse import EventStream
from twostroke.server.openai.logprobs import ChatTokenLogprob, chat_logprobs
from twostroke.server.responses.events import (
    Event,
    ResponseCompleted,
    ResponseCreated,
    ResponseFailed,
    ResponseIncomplete,
    ResponseInProgress,
    ResponseQueued,
    encode_event,
)
from twostroke.server.responses.objects import (
    IncompleteDetails,
    InputTokensDetails,
    OutputTokensDetails,
    ResponseError,
    ResponseObject,
    ResponseUsage,
)
from twostroke.server.responses.open_items import IN_PROGRESS
from twostroke.server.responses.output_writer import COMPLETED, OutputWriter
from twostroke.server.responses.request_tools import CalledName
from twostroke.text.answer_parsing.answer_parts import AnswerParts
from twostroke.text.answer_parsing.parts import AnswerPart, Reasoning
from twostroke.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

CUT = "incomplete"


class ResponseRun:
    """Implements ``Delivery``: one response, from its submission to its end.

    Args:
        response: The response that is answered at once; it grows with the outputs.
        parts: Those of its answer, as its text comes.
        tokenizer: For log-probabilities.
        called: The functions of namespaces, by the names that the model calls them.
        keeps_events: Whether a stream may begin later, and wants what was before it.
        on_end: Called with the run once the response is final, before its last event is sent.

    Attributes:
        response: Its ``output`` is up to date once it has ended, see ``snapshot``.
        keeps_events: Whether a stream may begin later.
        ended: Done once the response is final; a failure is its exception.
    """

    def __init__(
        self,
        response: ResponseObject,
        parts: AnswerParts,
        tokenizer: Tokenizer,
        *,
        called: Mapping[str, CalledName],
        keeps_events: bool,
        on_end: Callable[[ResponseRun], None],
    ) -> None:
        self.response = response
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._on_end = on_end
        self._generation: Generation | None = None
        self._parts = parts
        self._tokenizer = tokenizer
        self._writer = OutputWriter(called)
        self._streams: list[EventStream] = []
        self.keeps_events = keeps_events
        self._frames: list[bytes] = []
        self._num_events = 0
        self._num_logprobs = 0
        self._reasoning_tokens = 0
        self._unread_tokens = 0  # of steps that gave no part yet

    def begin(self, generation: Generation) -> None:
        """Announce the response, and take the outputs of its generation."""
        self._generation = generation
        queued = [ResponseQueued(response=self.response)] if self.response.background else []
        self._publish([ResponseCreated(response=self.response), *queued])
        if not queued:
            self._publish([ResponseInProgress(response=self.response)])
        generation.deliver_to(self)

    def stream_to(self, stream: EventStream, starting_after: int = -1) -> None:
        """Send the events to a client: those after a number that were kept, then each."""
        if kept := b"".join(self._frames[starting_after + 1 :]):
            stream.push(kept)
        self._streams.append(stream)

    def leave(self, stream: EventStream) -> None:
        """Send it no more."""
        if stream in self._streams:
            self._streams.remove(stream)

    def snapshot(self) -> ResponseObject:
        """The response as it is now."""
        if not self.response.ended:
            self.response.output = self._writer.items()
        return self.response

    def events(self) -> bytes | None:
        """All that were kept."""
        return b"".join(self._frames) if self.keeps_events else None

    def cancel(self) -> None:
        """End it now, with what there is; harmless after the end."""
        if not self.response.ended and self._generation is not None:
            self._generation.abort()
            self._finish("cancelled", CUT)

    def abandon(self) -> None:
        """End it without a trace: its client has left, and nothing is stored."""
        self._streams.clear()
        if self._generation is not None:
            self._generation.end()

    # ---- the outputs -----------------------------------------------------------------------------

    def deliver(self, choice: int, output: RequestOutput, *, last: bool) -> None:
        if self.response.ended:
            return
        if self.response.status == "queued":
            self.response.status = IN_PROGRESS
            self._publish([ResponseInProgress(response=self.response)])
        self._hold_logprobs(output)
        parts = self._parts.add(output.text, ended=output.finished)
        self._count(parts, len(output.token_ids))
        self._publish(self._writer.add(parts, self._logprobs(output)))
        if last:
            cut = output.finish_reason is FinishReason.LENGTH
            if cut:
                self.response.incomplete_details = IncompleteDetails("max_output_tokens")
            self._finish(CUT if cut else COMPLETED, CUT if cut else COMPLETED)

    def fail(self, error: Exception) -> None:
        if self.response.ended:
            return
        if isinstance(error, TwostrokeError):
            message = f"{error.message}. Hint: {error.hint}" if error.hint else error.message
        else:
            logger.error("response %s failed", self.response.id, exc_info=error)
            message = "internal server error; the server's log has the cause"
        self.response.error = ResponseError("server_error", message)
        self._finish("failed", CUT, error)

    def _count(self, parts: Sequence[AnswerPart], num_tokens: int) -> None:
        """Tokens that gave no part at once count to what they turn out to be."""
        self._unread_tokens += num_tokens
        if any(isinstance(part, Reasoning) for part in parts):
            self._reasoning_tokens += self._unread_tokens
        if parts:
            self._unread_tokens = 0

    def _hold_logprobs(self, output: RequestOutput) -> None:
        if output.logprobs and self._generation is not None:
            self._num_logprobs += num_output_entries(output)
            self._generation.hold_logprobs(self._num_logprobs)

    def _logprobs(self, output: RequestOutput) -> list[ChatTokenLogprob]:
        if not output.logprobs:
            return []
        top = self.response.top_logprobs
        return chat_logprobs(output.logprobs, self._tokenizer, top).content

    def _finish(self, status: str, item_status: str, error: Exception | None = None) -> None:
        response = self.response
        assert self._generation is not None
        tokens = self._generation.tokens
        closing = self._writer.finish(item_status, whole=status in (COMPLETED, CUT))
        response.status, response.output = status, self._writer.items()
        response.completed_at = int(time.time()) if status == COMPLETED else None
        response.usage = ResponseUsage(
            tokens.prompt,
            InputTokensDetails(sum(tokens.cached)),
            tokens.completion,
            OutputTokensDetails(self._reasoning_tokens),
            tokens.prompt + tokens.completion,
        )
        last: Event = ResponseIncomplete(response=response)
        if status == COMPLETED:
            last = ResponseCompleted(response=response)
        elif status == "failed":
            last = ResponseFailed(response=response)
        frames = self._encode([*closing, last])
        # Not within the delivery of the last output, of which the engine's stream is not through.
        asyncio.get_running_loop().call_soon(self._generation.end)
        # Stored before a client can ask for it.
        self._on_end(self)
        for stream in self._streams:
            stream.end(frames)
        self._streams.clear()
        if error is None:
            self.ended.set_result(None)
        else:
            self.ended.set_exception(error)
            self.ended.exception()  # read: in the background nothing else may do so

    # ---- the events ------------------------------------------------------------------------------

    def _publish(self, events: Sequence[Event]) -> None:
        if events and (frames := self._encode(events)):
            for stream in self._streams:
                stream.push(frames)

    def _encode(self, events: Sequence[Event]) -> bytes:
        """Number events, and keep them if that is asked for; empty where nothing takes them."""
        for event in events:
            event.sequence_number = self._num_events
            self._num_events += 1
        if not self._streams and not self.keeps_events:
            return b""
        frames = [encode_event(event) for event in events]
        if self.keeps_events:
            self._frames += frames
        return b"".join(frames)
