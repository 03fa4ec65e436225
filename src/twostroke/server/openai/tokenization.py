"""``POST /tokenize`` and ``POST /detokenize``, as vLLM has them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, ClassVar

from fastapi import APIRouter
from msgspec import Struct
from pydantic import Field
from starlette.responses import Response

from twostroke.core.errors import InvalidRequestError
from twostroke.server.generation.encoding import check_tokens, encode_text
from twostroke.server.http.api_document import ERROR_RESPONSES, answer_responses
from twostroke.server.http.body_json import StrictRoute
from twostroke.server.http.json_response import json_response
from twostroke.server.openai.chat_messages import Messages
from twostroke.server.openai.chat_prompt import encode_messages
from twostroke.server.openai.field_limits import OpenAIFields, PromptTokens
from twostroke.server.state.served_model import ServedModel
from twostroke.server.state.server_state import ServerState


class TokenizeRequest(OpenAIFields):
    """Body of ``POST /tokenize``: a text, or a conversation."""

    refused: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "tools": ([],),
        "chat_template": (),
        "chat_template_kwargs": ({},),
        "mm_processor_kwargs": (),
    }

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
        for name in ("add_generation_prompt", "continue_final_message"):
            if self.prompt is not None and getattr(self, name) is not None:
                raise InvalidRequestError(f"{name} needs messages", param=name)


class DetokenizeRequest(OpenAIFields):
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


def tokenization_router(state: ServerState) -> APIRouter:
    """The routes that turn text into tokens and back, open while the server drains, too."""
    router = APIRouter(route_class=StrictRoute, tags=["tokenization"])

    @router.post(
        "/tokenize",
        response_class=Response,
        responses=answer_responses(Tokenized, "The tokens.") | ERROR_RESPONSES,
        description=(
            "The token ids of a prompt or of a conversation, and how many of them the model's"
            " context holds."
        ),
    )
    async def tokenize(body: TokenizeRequest) -> Response:
        model = state.model()
        model.check_name(body.model)
        body.check_combinations()
        tokens = await _encode(model, body)
        # On a thread: there may be a million of them.
        return await asyncio.to_thread(
            _tokenized, model, tokens, with_strings=bool(body.return_token_strs)
        )

    @router.post(
        "/detokenize",
        response_class=Response,
        responses=answer_responses(Detokenized, "The text.") | ERROR_RESPONSES,
    )
    async def detokenize(body: DetokenizeRequest) -> Response:
        """The text of token ids, special tokens written out."""
        model = state.model()
        model.check_name(body.model)
        check_tokens(model, body.tokens, "tokens")
        # On a thread: a body may hold millions of them.
        text = await asyncio.to_thread(
            model.client.tokenizer.decode, body.tokens, skip_special_tokens=False
        )
        return json_response(Detokenized(text))

    return router


async def _encode(model: ServedModel, body: TokenizeRequest) -> list[int]:
    if body.prompt is not None:
        specials = body.add_special_tokens is not False
        return await encode_text(model, body.prompt, add_special_tokens=specials)
    return await encode_messages(
        model,
        body.messages or [],
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        add_special_tokens=bool(body.add_special_tokens),
    )


def _tokenized(model: ServedModel, tokens: list[int], *, with_strings: bool) -> Response:
    strings = list(map(model.client.tokenizer.piece, tokens)) if with_strings else None
    max_model_len = model.client.info.max_model_len
    return json_response(
        Tokenized(count=len(tokens), max_model_len=max_model_len, tokens=tokens, token_strs=strings)
    )
