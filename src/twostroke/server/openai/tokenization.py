"""``/tokenize``, ``/detokenize`` and ``/tokenizer_info``, as vLLM has them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from fastapi import APIRouter
from msgspec import Struct
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from twostroke.core.errors import InvalidRequestError
from twostroke.gateway.caller import Caller, caller_of
from twostroke.server.calls.prompt import encode_messages
from twostroke.server.generation.encoding import beside_loop, check_tokens, encode_text
from twostroke.server.http.api_document import ERROR_RESPONSES, answer_responses
from twostroke.server.http.body_json import StrictRoute
from twostroke.server.http.ignored_header import ignored_header
from twostroke.server.http.json_response import json_response
from twostroke.server.openai.chat_messages import (
    ChatMessage,
    Messages,
    bounded_messages,
    turn_options,
)
from twostroke.server.openai.field_limits import PromptTokens, RequestFields
from twostroke.server.openai.former_calls import without_cut_calls
from twostroke.server.openai.template_variables import template_variables
from twostroke.server.openai.tools.request_tools import Tools, check_tools, template_tools
from twostroke.server.state.served_model import ServedModel
from twostroke.server.state.server_state import ServerState
from twostroke.text.json_values import is_large


class TokenizeRequest(RequestFields):
    """Body of ``POST /tokenize``: a text, or a conversation."""

    refused: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "chat_template": (),
    }
    nested: ClassVar[tuple[str, ...]] = ("messages", "tools")

    model: str | None = Field(
        None, description="A name that /v1/models lists; by default the only one."
    )
    prompt: str | None = Field(None, description="Either this or messages.")
    messages: Messages | None = Field(None, description="Either this or prompt.")
    add_special_tokens: bool | None = Field(
        None,
        description=(
            "Add the model's BOS; by default to a prompt, not to messages, whose template"
            " writes it."
        ),
    )
    add_generation_prompt: bool | None = Field(
        None, description="Of messages: open the assistant's turn; by default."
    )
    continue_final_message: bool | None = Field(
        None, description="Of messages: leave the last one open."
    )
    chat_template_kwargs: dict[str, Any] | None = Field(
        None, description="Of messages: variables of the chat template."
    )
    tools: Tools | None = Field(
        None, description="Of messages: functions, as the chat template writes them."
    )
    return_token_strs: bool | None = Field(
        None, description="Return the tokens as the vocabulary spells them, too."
    )

    def check_combinations(self) -> None:
        """Refuse combinations that have no meaning."""
        if (self.prompt is None) == (self.messages is None):
            message = (
                "neither prompt nor messages is there"
                if self.prompt is None
                else "prompt and messages are there"
            )
            raise InvalidRequestError(message, param="prompt", hint="send one of the two")
        check_tools(self.tools or (), None)
        for name in ("add_generation_prompt", "continue_final_message", "tools"):
            if self.prompt is not None and getattr(self, name) is not None:
                raise InvalidRequestError(f"{name} needs messages", param=name)


class DetokenizeRequest(RequestFields):
    """Body of ``POST /detokenize``."""

    model: str | None = Field(
        None, description="A name that /v1/models lists; by default the only one."
    )
    tokens: PromptTokens


class Tokenized(Struct, kw_only=True):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class Detokenized(Struct):
    prompt: str


class TokenizerInfo(Struct, kw_only=True):
    """What clients need that count or render by themselves, in the form of a checkpoint's file."""

    tokenizer_class: str = "PreTrainedTokenizerFast"
    model_max_length: int
    vocab_size: int
    bos_token: str | None
    eos_token: str | None
    pad_token: str | None
    unk_token: str | None
    chat_template: str | None


def tokenization_router(state: ServerState) -> APIRouter:
    """The routes that turn text into tokens and back, open while the server drains, too."""
    router = APIRouter(route_class=StrictRoute, tags=["tokenization"])

    @router.post(
        "/tokenize",
        response_class=Response,
        responses=answer_responses(Tokenized, "The tokens.", has_body=True) | ERROR_RESPONSES,
        description=(
            "The token ids of a prompt or of a conversation, and how many of them the model's"
            " context holds."
        ),
    )
    async def tokenize(body: TokenizeRequest, request: Request) -> Response:
        model = state.model(body.model).named(body.model)
        body.check_combinations()
        return await _answer_tokens(model, body, caller_of(request.scope))

    @router.post(
        "/detokenize",
        response_class=Response,
        responses=answer_responses(Detokenized, "The text.", has_body=True) | ERROR_RESPONSES,
    )
    async def detokenize(body: DetokenizeRequest, request: Request) -> Response:
        """The text of token ids, special tokens written out."""
        model = state.model(body.model).named(body.model)
        check_tokens(model, body.tokens, "tokens")
        caller_of(request.scope).charge(len(body.tokens))
        # On a thread: a body may hold millions of them.
        text = await asyncio.to_thread(
            model.tokenizer.decode, body.tokens, skip_special_tokens=False
        )
        return json_response(Detokenized(text), ignored_header(body.dropped_fields()))

    @router.get(
        "/tokenizer_info",
        response_class=Response,
        responses=answer_responses(TokenizerInfo, "The tokenizer.")
        | {status: ERROR_RESPONSES[status] for status in (401, 403, 404, 503)},
    )
    async def tokenizer_info(model: str | None = None) -> Response:
        """The tokenizer's special tokens and the chat template."""
        served = state.model(model)
        served.check_name(model)
        return json_response(_tokenizer_info(served))

    return router


async def _answer_tokens(model: ServedModel, body: TokenizeRequest, caller: Caller) -> Response:
    kwargs = body.chat_template_kwargs
    given_variables = partial(template_variables, model.chat_encoder.template, kwargs)
    variables, unread = await beside_loop(given_variables, slow=is_large(kwargs))
    whole = without_cut_calls(body.messages or ())
    tools = template_tools(body.tools or ()) or None
    tokens = await _encode(model, body, whole.messages, {**variables, "tools": tools})
    # How many they are is known only now, so the next request feels it.
    caller.charge(len(tokens))
    headers = ignored_header(body.dropped_fields() + whole.left_out + unread)
    # On a thread: there may be a million of them.
    return await asyncio.to_thread(
        _tokenized, model, tokens, headers, with_strings=bool(body.return_token_strs)
    )


def _tokenizer_info(model: ServedModel) -> TokenizerInfo:
    tokenizer = model.tokenizer
    tokens = tokenizer.special_tokens
    return TokenizerInfo(
        model_max_length=model.client.info.max_model_len,
        vocab_size=tokenizer.vocab_size,
        bos_token=tokens.get("bos_token"),
        eos_token=tokens.get("eos_token"),
        pad_token=tokens.get("pad_token"),
        unk_token=tokens.get("unk_token"),
        chat_template=tokenizer.chat_templates.get("default"),
    )


async def _encode(
    model: ServedModel,
    body: TokenizeRequest,
    messages: Sequence[ChatMessage],
    variables: Mapping[str, Any],
) -> list[int]:
    if body.prompt is not None:
        specials = body.add_special_tokens is not False
        return await encode_text(model, body.prompt, add_special_tokens=specials)
    turn = turn_options(body.add_generation_prompt, body.continue_final_message)
    return await encode_messages(
        model,
        await asyncio.to_thread(bounded_messages, model, messages),
        {**turn, **variables},
        add_special_tokens=bool(body.add_special_tokens),
    )


def _tokenized(
    model: ServedModel, tokens: list[int], headers: Mapping[str, str], *, with_strings: bool
) -> Response:
    strings = list(map(model.tokenizer.piece, tokens)) if with_strings else None
    max_model_len = model.client.info.max_model_len
    return json_response(
        Tokenized(
            count=len(tokens), max_model_len=max_model_len, tokens=tokens, token_strs=strings
        ),
        headers,
    )
