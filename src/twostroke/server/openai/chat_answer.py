"""What ``POST /v1/chat/completions`` answers: OpenAI's objects, and vLLM's additions."""

from __future__ import annotations

import time
from collections.abc import Sequence

from msgspec import UNSET, Struct, UnsetType

from twostroke.core.logprobs import PositionLogprobs
from twostroke.core.output import RequestOutput
from twostroke.engine.answer import CollectedAnswer
from twostroke.server.generation.response_format import CallTokens
from twostroke.server.http.sse import event
from twostroke.server.openai.chat_prompt import ChatPrompt
from twostroke.server.openai.chat_request import ChatCompletionRequest
from twostroke.server.openai.logprobs import (
    ChatLogprobs,
    PromptLogprobs,
    chat_logprobs,
    prompt_logprob_entries,
)
from twostroke.server.openai.stream_end import DONE, failure_events
from twostroke.server.openai.usage import ChunkUsage, Usage, context_usage, make_usage
from twostroke.server.state.served_model import ServedModel


class ChatDelta(Struct):
    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET


class ChatChunkChoice(Struct, kw_only=True):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatChunk(Struct, kw_only=True):
    id: str
    object: str = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class AnswerMessage(Struct):
    content: str
    role: str = "assistant"
    refusal: None = None


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
    usage: Usage
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class ChatResponseFormat:
    """Implements ``ResponseFormat`` for chat completions."""

    def __init__(
        self, request_id: str, model: ServedModel, body: ChatCompletionRequest, prompt: ChatPrompt
    ) -> None:
        self._id = request_id
        self._created = int(time.time())
        self._name = model.name
        self._tokenizer = model.client.tokenizer
        self._num_top_logprobs = body.top_logprobs or 0
        self._logprobs = bool(body.logprobs)
        self._token_ids = bool(body.return_token_ids)
        self._prompt = prompt.token_ids
        self._context = UNSET if prompt.report is None else context_usage(prompt.report)
        self._include_usage = body.include_usage
        self._continuous_usage = body.continuous_usage
        self._no_usage: ChunkUsage = None if body.include_usage else UNSET
        # What became of documents is reported whether or not usage was asked for.
        self._reports_at_end = prompt.report is not None and not body.include_usage

    def chunk(
        self, choice: int, output: RequestOutput, tokens: CallTokens, *, first: bool, last: bool
    ) -> bytes:
        """The role first, then what there is to say: nothing while text is held back."""
        usage = self._no_usage
        if self._continuous_usage:
            usage = make_usage(tokens)
        elif last and self._reports_at_end:
            usage = self._final_usage(tokens)
        events: list[ChatChunk] = []
        if first:
            delta = ChatDelta("assistant", "")
            opening = self._chunk([ChatChunkChoice(index=choice, delta=delta)], usage)
            if self._token_ids:
                opening.prompt_token_ids = self._prompt
            events.append(opening)
        if output.text or output.finished or output.logprobs or self._token_ids:
            events.append(self._chunk([self._chunk_choice(choice, output)], usage))
        if last and self._include_usage:
            events.append(self._chunk([], self._final_usage(tokens)))
        frames = b"".join(map(event, events))
        return frames + DONE if last else frames

    def failure(self, error: Exception) -> bytes:
        return failure_events(error)

    def complete(self, answers: Sequence[CollectedAnswer], tokens: CallTokens) -> object:
        positions = answers[0].prompt_logprobs
        return ChatCompletion(
            id=self._id,
            created=self._created,
            model=self._name,
            choices=[self._choice(index, answer) for index, answer in enumerate(answers)],
            usage=self._final_usage(tokens),
            prompt_logprobs=(
                UNSET if positions is None else prompt_logprob_entries(positions, self._tokenizer)
            ),
            prompt_token_ids=self._prompt if self._token_ids else UNSET,
        )

    def _chunk_choice(self, index: int, output: RequestOutput) -> ChatChunkChoice:
        delta = ChatDelta(content=output.text) if output.text else ChatDelta()
        choice = ChatChunkChoice(index=index, delta=delta)
        if output.logprobs:
            choice.logprobs = self._chat_logprobs(output.logprobs)
        if output.finish_reason is not None:
            choice.finish_reason = output.finish_reason.value
            choice.stop_reason = output.stop_reason
        if self._token_ids:
            choice.token_ids = output.token_ids
        return choice

    def _choice(self, index: int, answer: CollectedAnswer) -> ChatChoice:
        return ChatChoice(
            index=index,
            message=AnswerMessage(answer.text),
            logprobs=self._chat_logprobs(answer.logprobs) if self._logprobs else None,
            finish_reason=answer.finish_reason and answer.finish_reason.value,
            stop_reason=answer.stop_reason,
            token_ids=answer.token_ids if self._token_ids else UNSET,
        )

    def _final_usage(self, tokens: CallTokens) -> Usage:
        usage = make_usage(tokens)
        usage.context = self._context
        return usage

    def _chat_logprobs(self, positions: Sequence[PositionLogprobs]) -> ChatLogprobs:
        return chat_logprobs(positions, self._tokenizer, self._num_top_logprobs)

    def _chunk(self, choices: list[ChatChunkChoice], usage: ChunkUsage) -> ChatChunk:
        return ChatChunk(
            id=self._id, created=self._created, model=self._name, choices=choices, usage=usage
        )
