"""What ``POST /v1/messages`` answers: a message, or the events that add up to it."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from twostroke.core.output import RequestOutput
from twostroke.core.request import FinishReason
from twostroke.engine.answer import CollectedAnswer
from twostroke.server.anthropic.content_blocks import (
    BlockEvent,
    BlockWriter,
    ContentBlock,
    ContentBlockDelta,
    ContentBlockStart,
    ContentBlockStop,
    whole_blocks,
)
from twostroke.server.anthropic.message_request import MessageRequest
from twostroke.server.anthropic_shape import AnthropicError, anthropic_error, anthropic_status
from twostroke.server.generation.response_format import CallTokens
from twostroke.server.http.errors import error_rule, error_text
from twostroke.server.http.sse import event
from twostroke.text.answer_parsing.answer_parts import AnswerParts


class MessageUsage(Struct, kw_only=True):
    __doc__ = (
        "Tokens of a call; the prompt's are ``input_tokens`` and ``cache_read_input_tokens``"
        " together."
    )

    input_tokens: int
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int
    output_tokens: int


class Message(Struct, kw_only=True, tag_field="type", tag="message"):
    """A whole answer, or, in ``message_start``, one without content."""

    id: str
    role: str = "assistant"
    model: str
    content: list[ContentBlock]
    stop_reason: str | None = None
    stop_sequence: str | None = None
    usage: MessageUsage


class TokensCount(Struct):
    """The tokens of a prompt, its tools included."""

    input_tokens: int


class MessageStart(Struct, tag_field="type", tag="message_start"):
    message: Message


class StopDelta(Struct):
    stop_reason: str | None
    stop_sequence: str | None


class MessageDelta(Struct, tag_field="type", tag="message_delta"):
    delta: StopDelta
    usage: MessageUsage


class MessageStop(Struct, tag_field="type", tag="message_stop"):
    pass


class Ping(Struct, tag_field="type", tag="ping"):
    pass


MessageEvent = (
    MessageStart
    | ContentBlockStart
    | ContentBlockDelta
    | ContentBlockStop
    | MessageDelta
    | MessageStop
    | Ping
    | AnthropicError
)


class MessageResponseFormat:
    """Implements ``ResponseFormat`` for messages.

    Args:
        message_id: The ``id`` of the message.
        request_id: What errors in mid-stream call the request.
        fills_context: The answer may have as many tokens as the context holds, not ``max_tokens``.
    """

    def __init__(
        self,
        message_id: str,
        request_id: str,
        model_name: str,
        body: MessageRequest,
        parts: AnswerParts,
        *,
        fills_context: bool,
    ) -> None:
        self._id, self._request_id = message_id, request_id
        self._name = model_name
        self._stop_sequences = frozenset(body.stop_sequences or ())
        self._fills_context = fills_context
        self._parts = parts
        thinking = body.thinking
        self._writer = BlockWriter(
            show_thoughts=thinking is None or thinking.type != "disabled",
            omit_thoughts=thinking is not None and thinking.display == "omitted",
        )

    def chunk(
        self, choice: int, output: RequestOutput, tokens: CallTokens, *, first: bool, last: bool
    ) -> bytes:
        """The message first, then its blocks, then why it ended; a ping when the first begins."""
        events: list[MessageEvent] = []
        if first:
            events.append(MessageStart(self._message([], tokens)))
        for block_event in self._read(output.text, ended=output.finish_reason is not None):
            events.append(block_event)
            if isinstance(block_event, ContentBlockStart) and block_event.index == 0:
                events.append(Ping())
        if output.finish_reason is not None:
            stop = self._stop(output.finish_reason, output.stop_reason)
            events += [MessageDelta(stop, _usage(tokens)), MessageStop()]
        return b"".join(map(named_event, events))

    def failure(self, error: Exception) -> bytes:
        rule = error_rule(error)
        status = anthropic_status(rule.status, rule.code)
        text = error_text(error)
        return named_event(anthropic_error(text, status, rule.code, self._request_id))

    def complete(self, answers: Sequence[CollectedAnswer], tokens: CallTokens) -> object:
        (answer,) = answers
        message = self._message(whole_blocks(self._read(answer.text, ended=True)), tokens)
        if answer.finish_reason is not None:
            stop = self._stop(answer.finish_reason, answer.stop_reason)
            message.stop_reason, message.stop_sequence = stop.stop_reason, stop.stop_sequence
        return message

    def _message(self, content: list[ContentBlock], tokens: CallTokens) -> Message:
        return Message(id=self._id, model=self._name, content=content, usage=_usage(tokens))

    def _read(self, text: str, *, ended: bool) -> list[BlockEvent]:
        parts = self._parts.add(text, ended=ended)
        return self._writer.write(parts) + (self._writer.end() if ended else [])

    def _stop(self, reason: FinishReason, stopped_by: str | int | None) -> StopDelta:
        if reason is FinishReason.LENGTH:
            full = "model_context_window_exceeded" if self._fills_context else "max_tokens"
            return StopDelta(full, None)
        if isinstance(stopped_by, str) and stopped_by in self._stop_sequences:
            return StopDelta("stop_sequence", stopped_by)
        return StopDelta("tool_use" if self._parts.has_calls else "end_turn", None)


def named_event(value: Struct) -> bytes:
    """A server-sent event under the name of its type."""
    return f"event: {value.__struct_config__.tag}\n".encode() + event(value)


def _usage(tokens: CallTokens) -> MessageUsage:
    cached = sum(tokens.cached)
    return MessageUsage(
        input_tokens=tokens.prompt - cached,
        cache_read_input_tokens=cached,
        output_tokens=tokens.completion,
    )
