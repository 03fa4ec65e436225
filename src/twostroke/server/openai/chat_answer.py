"""What ``POST /v1/chat/completions`` answers: OpenAI's objects, and vLLM's additions."""

from __future__ import annotations

import time
from collections.abc import Sequence

from msgspec import UNSET, Struct, UnsetType

from twostroke.constraints.thought_budget import ThoughtBudget
from twostroke.core.logprobs import PositionLogprobs
from twostroke.core.output import RequestOutput
from twostroke.core.request import FinishReason
from twostroke.engine.answer import CollectedAnswer
from twostroke.server.calls.prepare import PreparedCall
from twostroke.server.generation.answer_reading import AnswerReading
from twostroke.server.generation.response_format import CallTokens
from twostroke.server.http.sse import event
from twostroke.server.openai.chat_request import ChatCompletionRequest
from twostroke.server.openai.drafts import Drafts, drafts_of
from twostroke.server.openai.logprobs import (
    ChatLogprobs,
    PromptLogprobs,
    chat_logprobs,
    prompt_logprob_entries,
    token_as_id,
    token_text,
)
from twostroke.server.openai.stream_end import DONE, failure_events
from twostroke.server.openai.tools.answer_parts import (
    AnswerMessage,
    ChatDelta,
    delta_of,
    message_of,
)
from twostroke.server.openai.tools.custom_tools import ChatPart, CustomCalls
from twostroke.server.openai.usage import ChunkUsage, Usage, context_usage, make_usage
from twostroke.server.state.served_model import ServedModel
from twostroke.text.answer_parsing.answer_parts import AnswerParts


class ChatChunkChoice(Struct, kw_only=True):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET
    drafts: Drafts | UnsetType = UNSET


class ChatChunk(Struct, kw_only=True):
    id: str
    object: str = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatChunkChoice]
    system_fingerprint: None = None
    usage: Usage | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class ChatChoice(Struct, kw_only=True):
    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None
    stop_reason: str | int | None = None
    token_ids: list[int] | UnsetType = UNSET


class ChatCompletion(Struct, kw_only=True):
    id: str
    object: str = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    system_fingerprint: None = None
    usage: Usage
    prompt_logprobs: PromptLogprobs | None = None
    prompt_token_ids: list[int] | None = None


class ChatResponseFormat:
    """Implements ``ResponseFormat`` for chat completions."""

    def __init__(
        self,
        request_id: str,
        model: ServedModel,
        body: ChatCompletionRequest,
        call: PreparedCall,
    ) -> None:
        self._id = request_id
        self._created = int(time.time())
        self._name = model.name
        self._tokenizer = model.tokenizer
        self._num_top_logprobs = len(body.logprob_token_ids or ()) or body.top_logprobs or 0
        self._logprobs = bool(body.logprobs)
        self._name_of_token = token_as_id if body.return_tokens_as_token_ids else token_text
        self._token_ids = bool(body.return_token_ids)
        self._drafts = bool(body.return_drafts)
        self._prompt, report = call.prompt
        self._parts = ChatParts(call.reading, body)
        self._context = UNSET if report is None else context_usage(report)
        self._include_usage = body.include_usage or model.ends_with_usage
        self._continuous_usage = body.continuous_usage
        self._no_usage: ChunkUsage = None if self._include_usage else UNSET
        # What became of documents is reported even where usage was not asked for.
        reported = self._include_usage or body.refuses_usage
        self._reports_at_end = report is not None and not reported

    def chunk(
        self, choice: int, output: RequestOutput, tokens: CallTokens, *, first: bool, last: bool
    ) -> bytes:
        """The role first, then what there is to say, then why it ended.

        Nothing is said while text is held back.
        """
        self._parts.count(choice, output.token_ids)
        usage = self._usage(tokens) if self._continuous_usage else self._no_usage
        events: list[ChatChunk] = []
        if first:
            delta = ChatDelta("assistant", "")
            before = make_usage(tokens, len(output.token_ids)) if self._continuous_usage else usage
            opening = self._chunk([ChatChunkChoice(index=choice, delta=delta)], before)
            if self._token_ids:
                opening.prompt_token_ids = self._prompt
            events.append(opening)
        gained = self._parts.delta(choice, output)
        drafts = drafts_of(output, self._tokenizer) if self._drafts else UNSET
        shown = gained is not None or bool(output.logprobs) or drafts is not UNSET
        # Without a text, the ids of the last tokens are in the chunk that says why it ended.
        has_piece = shown or (self._token_ids and output.finish_reason is None)
        if has_piece:
            piece = self._chunk_choice(choice, gained, output)
            piece.drafts = drafts
            events.append(self._chunk([piece], usage))
        if output.finish_reason is not None:
            ended = ChatChunkChoice(index=choice, delta=ChatDelta())
            ended.finish_reason = self._parts.finish_reason(choice, output.finish_reason)
            ended.stop_reason = output.stop_reason
            if self._token_ids:
                ended.token_ids = [] if has_piece else output.token_ids
            if last and self._reports_at_end and not self._continuous_usage:
                usage = self._final_usage(tokens)
            events.append(self._chunk([ended], usage))
        if last and self._include_usage:
            events.append(self._chunk([], self._final_usage(tokens)))
        frames = b"".join(map(event, events))
        return frames + DONE if last else frames

    def failure(self, error: Exception) -> bytes:
        return failure_events(error)

    def complete(self, answers: Sequence[CollectedAnswer], tokens: CallTokens) -> object:
        positions = answers[0].prompt_logprobs
        for index, answer in enumerate(answers):
            self._parts.count(index, answer.token_ids)
        return ChatCompletion(
            id=self._id,
            created=self._created,
            model=self._name,
            choices=[self._choice(index, answer) for index, answer in enumerate(answers)],
            usage=self._final_usage(tokens),
            prompt_logprobs=(
                None if positions is None else prompt_logprob_entries(positions, self._tokenizer)
            ),
            prompt_token_ids=self._prompt if self._token_ids else None,
        )

    def _chunk_choice(
        self, index: int, delta: ChatDelta | None, output: RequestOutput
    ) -> ChatChunkChoice:
        choice = ChatChunkChoice(index=index, delta=delta or ChatDelta())
        if output.logprobs:
            choice.logprobs = self._chat_logprobs(output.logprobs)
        if self._token_ids:
            choice.token_ids = output.token_ids
        return choice

    def _choice(self, index: int, answer: CollectedAnswer) -> ChatChoice:
        message = self._parts.message(index, answer.text)
        reason = answer.finish_reason
        return ChatChoice(
            index=index,
            message=message,
            logprobs=self._chat_logprobs(answer.logprobs) if self._logprobs else None,
            finish_reason=None if reason is None else self._parts.finish_reason(index, reason),
            stop_reason=answer.stop_reason,
            token_ids=answer.token_ids if self._token_ids else UNSET,
        )

    def _final_usage(self, tokens: CallTokens) -> Usage:
        usage = self._usage(tokens)
        usage.context = self._context
        return usage

    def _usage(self, tokens: CallTokens) -> Usage:
        return make_usage(tokens, num_reasoning=self._parts.num_reasoning)

    def _chat_logprobs(self, positions: Sequence[PositionLogprobs]) -> ChatLogprobs:
        return chat_logprobs(
            positions, self._tokenizer, self._num_top_logprobs, self._name_of_token
        )

    def _chunk(self, choices: list[ChatChunkChoice], usage: ChunkUsage) -> ChatChunk:
        return ChatChunk(
            id=self._id, created=self._created, model=self._name, choices=choices, usage=usage
        )


class ChatParts:
    """The parts of each choice, parsed as they come where the model writes others than content."""

    def __init__(self, reading: AnswerReading, body: ChatCompletionRequest) -> None:
        self._reading = reading
        self._include_reasoning = body.include_reasoning is not False
        self._choices: dict[int, AnswerParts] = {}
        self._custom_names = body.custom_names
        self._custom: dict[int, CustomCalls] = {}
        self._thoughts: dict[int, ThoughtBudget] = {}
        counts = not body.stream or body.include_usage or body.continuous_usage
        self._counts = counts and bool(reading.thought)

    def count(self, choice: int, token_ids: Sequence[int]) -> None:
        """Count what is thought among a choice's new tokens, if usage is to say so."""
        if not self._counts:
            return
        thought = self._thoughts.get(choice) or self._reading.make_thought_count()
        if thought is not None:
            self._thoughts[choice] = thought
            if not thought.is_over:
                thought.advance(token_ids)

    @property
    def num_reasoning(self) -> int | None:
        """Tokens of thoughts of all choices so far; ``None`` of a model that does not think."""
        if not self._reading.thought:
            return None
        return sum(thought.num_tokens for thought in self._thoughts.values())

    def delta(self, choice: int, output: RequestOutput) -> ChatDelta | None:
        """What a step's output adds to a choice; ``None`` if there is nothing to show."""
        if not self._reading.parses:
            return ChatDelta(content=output.text) if output.text else None
        parts = self._read(choice, output.text, ended=output.finish_reason is not None)
        return delta_of(parts, include_reasoning=self._include_reasoning)

    def message(self, choice: int, text: str) -> AnswerMessage:
        """The message of a whole answer."""
        if not self._reading.parses:
            return AnswerMessage(text)
        parts = self._read(choice, text, ended=True)
        return message_of(parts, include_reasoning=self._include_reasoning)

    def finish_reason(self, choice: int, reason: FinishReason) -> str:
        """Why a choice ended, once all of it has been read."""
        parts = self._choices.get(choice)
        called = parts is not None and parts.has_calls
        return "tool_calls" if called and reason is FinishReason.STOP else reason.value

    def _read(self, choice: int, text: str, *, ended: bool) -> Sequence[ChatPart]:
        answer = self._choices.get(choice)
        if answer is None:
            answer = self._choices[choice] = self._reading.make_parts()
        parts = answer.add(text, ended=ended)
        if not self._custom_names:
            return parts
        return self._custom.setdefault(choice, CustomCalls(self._custom_names)).convert(parts)
