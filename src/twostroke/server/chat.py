"""``POST /v1/chat/completions``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from fastapi import APIRouter, Request
from msgspec import UNSET
from starlette.responses import Response

from twostroke.core.errors import InvalidRequestError, RequestTooLargeError
from twostroke.core.logprobs import PositionLogprobs
from twostroke.core.output import RequestOutput
from twostroke.server.answers import RunningUsage, Sample
from twostroke.server.context import (
    assemble_chat,
    checked_messages,
    context_usage,
    rendering_options,
)
from twostroke.server.generation import Generation, check_length, encode_text, truncate
from twostroke.server.logprobs import chat_logprobs, prompt_logprobs
from twostroke.server.openapi import ERROR_RESPONSES, answers
from twostroke.server.protocol import ChatCompletionRequest, ChatMessage
from twostroke.server.request_id import name_request
from twostroke.server.responses import (
    AnswerMessage,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatLogprobs,
    Usage,
)
from twostroke.server.serving import ServedModel, Serving
from twostroke.server.strict_json import StrictRoute
from twostroke.text.context_report import ContextReport
from twostroke.text.tokenizer import LONG_TEXT

MANY_MESSAGES = 256  # more are rendered on a thread


def chat_router(serving: Serving) -> APIRouter:
    """The route of chat completions."""
    router = APIRouter(route_class=StrictRoute, tags=["chat"])

    responses = answers(
        ChatCompletion, "The answer; or, streamed, its pieces, then [DONE].", stream=ChatChunk
    )

    @router.post(
        "/v1/chat/completions", response_class=Response, responses=responses | ERROR_RESPONSES
    )
    async def create_chat_completion(body: ChatCompletionRequest, request: Request) -> Response:
        """The model's answer to a conversation."""
        model = serving.accepting(request.scope)
        model.check_name(body.model)
        params = body.to_params(model.client.info.sampling_defaults)
        request_id = name_request(request.scope, "chatcmpl")
        try:
            report = None
            if body.is_assembled:
                prompt, report = await assemble_chat(model, body, params.max_tokens)
            else:
                prompt = await encode_chat(
                    model,
                    body.messages,
                    add_generation_prompt=body.add_generation_prompt,
                    continue_final_message=body.continue_final_message,
                    add_special_tokens=bool(body.add_special_tokens),
                    most=body.most_prompt_tokens(model.client.info),
                )
                prompt = truncate(prompt, body.kept_prompt_tokens(model.client.info, params))
            generation = Generation(model.client, request_id, [prompt], params, body)
        except InvalidRequestError as error:
            raise _in_terms_of_chat(error, body) from error
        shape = ChatShape(request_id, model, body, prompt, report)
        return await generation.respond(shape, body, request, usage_at_end=shape.reports_at_end)

    return router


async def encode_chat(
    model: ServedModel,
    messages: Sequence[ChatMessage],
    *,
    add_generation_prompt: bool | None,
    continue_final_message: bool | None,
    add_special_tokens: bool = False,
    most: int | None = None,
) -> list[int]:
    """The token ids of a conversation; the assistant's turn is opened unless its last message is to
    go on.

    Args:
        most: See ``encode_text``.
    """
    length = sum(
        len(c) if isinstance(c := m.content, str) else sum(len(part.text) for part in c)
        for m in messages
    )
    check_length(model, length, "messages")
    chat = checked_messages(messages)
    options = rendering_options(add_generation_prompt, continue_final_message)
    if length > LONG_TEXT or len(messages) > MANY_MESSAGES:
        text = await asyncio.to_thread(model.chat_template.render, chat, **options)
    else:
        text = model.chat_template.render(chat, **options)
    return await encode_text(model, text, add_special_tokens=add_special_tokens, most=most)


def _in_terms_of_chat(
    error: InvalidRequestError, body: ChatCompletionRequest
) -> InvalidRequestError:
    """The engine's refusal, with the names that a chat request has for prompt and limit."""
    names = {"prompt": "messages"}
    if body.max_completion_tokens is not None:
        names["max_tokens"] = "max_completion_tokens"
    if body.top_logprobs is not None:
        names["logprobs"] = "top_logprobs"
    param = names.get(error.param or "", error.param)
    if isinstance(error, RequestTooLargeError):
        return RequestTooLargeError(
            error.message,
            needed=error.needed,
            available=error.available,
            param=param,
            hint=error.hint,
        )
    return InvalidRequestError(error.message, param=param, hint=error.hint)


class ChatShape:
    """Implements ``Shape`` for chat completions."""

    def __init__(
        self,
        request_id: str,
        model: ServedModel,
        body: ChatCompletionRequest,
        prompt: list[int],
        report: ContextReport | None = None,
    ) -> None:
        self._context = UNSET if report is None else context_usage(report)
        self.reports_at_end = report is not None and not body.include_usage
        self._id = request_id
        self._created = int(time.time())
        self._name = model.name
        self._tokenizer = model.client.tokenizer
        self._top = body.top_logprobs or 0
        self._logprobs = bool(body.logprobs)
        self._token_ids = bool(body.return_token_ids)
        self._prompt = prompt

    def chunk(
        self, index: int, output: RequestOutput, usage: RunningUsage, *, first: bool
    ) -> list[object]:
        """The role first, then what there is to say: nothing while text is held back."""
        if self.reports_at_end and isinstance(usage, Usage):
            usage.context = self._context
        events: list[object] = []
        if first:
            opening = self._chunk(
                [ChatChunkChoice(index=index, delta=ChatDelta("assistant", ""))], usage
            )
            if self._token_ids:
                opening.prompt_token_ids = self._prompt
            events.append(opening)
        if output.text or output.finished or output.logprobs or self._token_ids:
            choice = ChatChunkChoice(
                index=index, delta=ChatDelta(content=output.text) if output.text else ChatDelta()
            )
            if output.logprobs:
                choice.logprobs = self._shape_logprobs(output.logprobs)
            if output.finish_reason is not None:
                choice.finish_reason, choice.stop_reason = (
                    output.finish_reason.value,
                    output.stop_reason,
                )
            if self._token_ids:
                choice.token_ids = output.token_ids
            events.append(self._chunk([choice], usage))
        return events

    def usage_chunk(self, usage: Usage) -> object:
        usage.context = self._context
        return ChatChunk(
            id=self._id, created=self._created, model=self._name, choices=[], usage=usage
        )

    def complete(self, samples: Sequence[Sample], usage: Usage) -> object:
        choices = [
            ChatChoice(
                index=index,
                message=AnswerMessage(sample.text),
                logprobs=self._shape_logprobs(sample.logprobs) if self._logprobs else None,
                finish_reason=sample.finish_reason,
                stop_reason=sample.stop_reason,
                token_ids=sample.token_ids if self._token_ids else UNSET,
            )
            for index, sample in enumerate(samples)
        ]
        prompt = samples[0].prompt_logprobs
        usage.context = self._context
        return ChatCompletion(
            id=self._id,
            created=self._created,
            model=self._name,
            choices=choices,
            usage=usage,
            prompt_logprobs=UNSET if prompt is None else prompt_logprobs(prompt, self._tokenizer),
            prompt_token_ids=self._prompt if self._token_ids else UNSET,
        )

    def _shape_logprobs(self, positions: Sequence[PositionLogprobs]) -> ChatLogprobs:
        return chat_logprobs(positions, self._tokenizer, self._top)

    def _chunk(self, choices: list[ChatChunkChoice], usage: RunningUsage) -> ChatChunk:
        return ChatChunk(
            id=self._id, created=self._created, model=self._name, choices=choices, usage=usage
        )
