"""What ``POST /api/chat`` and ``POST /api/generate`` answer: lines of JSON, or one object."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from msgspec import UNSET, Struct, UnsetType

from twostroke.core.output import RequestOutput
from twostroke.core.request import FinishReason
from twostroke.engine.answer import CollectedAnswer
from twostroke.server.generation.response_format import CallTokens
from twostroke.server.http.errors import error_text
from twostroke.server.http.json_response import encode_json
from twostroke.server.ollama.pieces import OllamaToolCall, Piece, PieceReader
from twostroke.server.openai.logprobs import ChatTokenLogprob, chat_logprobs
from twostroke.server.plain_shapes import OllamaError
from twostroke.text.tokenizer import Tokenizer

LINES = "application/x-ndjson"


class AnswerLine(Struct, kw_only=True):
    """What all lines have. The last one says why the answer ended; durations are nanoseconds.

    ``load_duration`` is 0: the model was there. ``prompt_eval_duration`` is the time to the first
    token, queue and all; ``total_duration`` counts from the call's arrival.
    """

    model: str
    created_at: str
    done: bool = False
    done_reason: str | UnsetType = UNSET
    total_duration: int | UnsetType = UNSET
    load_duration: int | UnsetType = UNSET
    prompt_eval_count: int | UnsetType = UNSET
    prompt_eval_duration: int | UnsetType = UNSET
    eval_count: int | UnsetType = UNSET
    eval_duration: int | UnsetType = UNSET
    logprobs: list[ChatTokenLogprob] | UnsetType = UNSET


class OllamaMessage(Struct):
    """A message, or a piece of it."""

    role: str
    content: str
    thinking: str | UnsetType = UNSET
    tool_calls: list[OllamaToolCall] | UnsetType = UNSET


class ChatLine(AnswerLine, kw_only=True):
    """A line of a chat's answer, or all of it."""

    message: OllamaMessage


class GenerateLine(AnswerLine, kw_only=True):
    """A line of the answer to a prompt, or all of it; ``context`` comes with the last."""

    response: str
    thinking: str | UnsetType = UNSET
    tool_calls: list[OllamaToolCall] | UnsetType = UNSET
    context: list[int] | UnsetType = UNSET


LineMaker = Callable[[str, Piece], ChatLine | GenerateLine]


def chat_line(model: str, piece: Piece) -> ChatLine:
    """A line of a chat."""
    message = OllamaMessage(
        "assistant", piece.content, piece.thinking or UNSET, piece.calls or UNSET
    )
    return ChatLine(model=model, created_at=utc_text(), message=message)


def generate_line(model: str, piece: Piece) -> GenerateLine:
    """A line of the answer to a single prompt."""
    return GenerateLine(
        model=model,
        created_at=utc_text(),
        response=piece.content,
        thinking=piece.thinking or UNSET,
        tool_calls=piece.calls or UNSET,
    )


def loaded_line(make_line: LineMaker, model: str) -> ChatLine | GenerateLine:
    """The answer to a request that only wants the model to be there, which it is."""
    line = make_line(model, Piece("", "", []))
    line.done, line.done_reason = True, "load"
    return line


def utc_text(seconds: float | None = None) -> str:
    """A Unix time, by default now, as this API writes times."""
    when = datetime.now(UTC) if seconds is None else datetime.fromtimestamp(seconds, UTC)
    return when.isoformat().replace("+00:00", "Z")


class OllamaResponseFormat:
    """Implements ``ResponseFormat`` for both.

    Args:
        model: The name that the answer carries.
        num_top_logprobs: How many other tokens are listed with log-probabilities; ``None``: none.
        prompt: Token ids of the prompt, if the answer tells where a next one can go on.
    """

    def __init__(
        self,
        make_line: LineMaker,
        model: str,
        reader: PieceReader,
        tokenizer: Tokenizer,
        *,
        num_top_logprobs: int | None = None,
        prompt: Sequence[int] | None = None,
    ) -> None:
        self._make_line, self._model, self._reader = make_line, model, reader
        self._tokenizer, self._num_top_logprobs = tokenizer, num_top_logprobs
        self._context = None if prompt is None else list(prompt)

    def chunk(
        self, choice: int, output: RequestOutput, tokens: CallTokens, *, first: bool, last: bool
    ) -> bytes:
        """What there is to say, in a line of its own; then the last line, which says no more."""
        lines: list[ChatLine | GenerateLine] = []
        piece = self._reader.read(output.text, ended=output.finished)
        if any(piece) or output.logprobs:
            line = self._make_line(self._model, piece)
            self._add_logprobs(line, output)
            lines.append(line)
        if self._context is not None:
            self._context += output.token_ids
        if output.finish_reason is not None:
            line = self._make_line(self._model, Piece("", "", []))
            self._end(line, output.finish_reason, tokens)
            lines.append(line)
        return b"".join(encode_json(line) + b"\n" for line in lines)

    def failure(self, error: Exception) -> bytes:
        return encode_json(OllamaError(error_text(error))) + b"\n"

    def complete(self, answers: Sequence[CollectedAnswer], tokens: CallTokens) -> object:
        (answer,) = answers
        line = self._make_line(self._model, self._reader.read(answer.text, ended=True))
        self._add_logprobs(line, answer)
        if self._context is not None:
            self._context += answer.token_ids
        self._end(line, answer.finish_reason or FinishReason.STOP, tokens)
        return line

    def _add_logprobs(
        self, line: ChatLine | GenerateLine, output: RequestOutput | CollectedAnswer
    ) -> None:
        if self._num_top_logprobs is not None and output.logprobs:
            listed = chat_logprobs(output.logprobs, self._tokenizer, self._num_top_logprobs)
            line.logprobs = listed.content

    def _end(self, line: ChatLine | GenerateLine, reason: FinishReason, tokens: CallTokens) -> None:
        now = time.monotonic()
        line.done, line.done_reason = True, reason.value
        line.total_duration = _nanoseconds(now - tokens.arrived)
        line.load_duration = 0
        line.prompt_eval_count = tokens.prompt
        line.prompt_eval_duration = _nanoseconds(tokens.begun - tokens.submitted)
        line.eval_count = tokens.completion
        line.eval_duration = _nanoseconds(now - tokens.begun)
        if isinstance(line, GenerateLine) and self._context is not None:
            line.context = self._context


def _nanoseconds(seconds: float) -> int:
    """Nanoseconds, at least one: clients divide by these."""
    return max(1, round(seconds * 1e9))
