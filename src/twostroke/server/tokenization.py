"""``POST /tokenize`` and ``POST /detokenize``, as vLLM has them: what the model sees of a text, and
back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, ClassVar

from fastapi import APIRouter
from msgspec import Struct
from pydantic import Field
from starlette.responses import Response

from twostroke.core.errors import InvalidRequestError
from twostroke.server.chat import encode_chat
from twostroke.server.generation import check_tokens, encode_text
from twostroke.server.openapi import ERROR_RESPONSES, answers
from twostroke.server.protocol import Messages
from twostroke.server.serving import ServedModel, Serving
from twostroke.server.sse import encode
from twostroke.server.strict import StrictModel, Tokens
from twostroke.server.strict_json import StrictRoute


class TokenizeRequest(StrictModel):
    """Body of ``POST /tokenize``: a text, or a conversation."""

    refused: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "tools": ([],), "chat_template": (), "chat_template_kwargs": ({},), "mm_processor_kwargs": (),
    }  # fmt: skip

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

    def check(self) -> None:
        """Refuse combinations that have no meaning."""
        if (self.prompt is None) == (self.messages is None):
            what = (
                "neither prompt nor messages is there"
                if self.prompt is None
                else "prompt and messages are there"
            )
            raise InvalidRequestError(what, param="prompt", hint="send one of the two")
        for name in ("add_generation_prompt", "continue_final_message"):
            if self.prompt is not None and getattr(self, name) is not None:
                raise InvalidRequestError(f"{name} needs messages", param=name)


class DetokenizeRequest(StrictModel):
    """Body of ``POST /detokenize``."""

    model: str | None = Field(
        None, description="A name that /v1/models lists; by default the only one."
    )
    tokens: Tokens


class Tokenized(Struct, kw_only=True):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class Detokenized(Struct):
    prompt: str


def tokenization_router(serving: Serving) -> APIRouter:
    """The routes that turn text into tokens and back. They are open while the server drains:
    nothing is generated.
    """
    router = APIRouter(route_class=StrictRoute, tags=["tokenization"])

    @router.post(
        "/tokenize",
        response_class=Response,
        responses=answers(Tokenized, "The tokens.") | ERROR_RESPONSES,
    )
    async def tokenize(body: TokenizeRequest) -> Response:
        """The token ids of a prompt or of a conversation, and how many of them the model's context
        holds.
        """
        model = serving.loaded()
        model.check_name(body.model)
        body.check()
        tokens = await _encode(model, body)
        # On a thread: there may be a million of them.
        return await asyncio.to_thread(
            _tokenized, model, tokens, with_strings=bool(body.return_token_strs)
        )

    @router.post(
        "/detokenize",
        response_class=Response,
        responses=answers(Detokenized, "The text.") | ERROR_RESPONSES,
    )
    async def detokenize(body: DetokenizeRequest) -> Response:
        """The text of token ids, special tokens written out."""
        model = serving.loaded()
        model.check_name(body.model)
        check_tokens(model, body.tokens, "tokens")
        # On a thread: a body may hold millions of them.
        text = await asyncio.to_thread(
            model.client.tokenizer.decode, body.tokens, skip_special_tokens=False
        )
        return _json(Detokenized(text))

    return router


async def _encode(model: ServedModel, body: TokenizeRequest) -> list[int]:
    if body.prompt is not None:
        specials = body.add_special_tokens is not False
        return await encode_text(model, body.prompt, add_special_tokens=specials)
    return await encode_chat(
        model,
        body.messages or [],
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        add_special_tokens=bool(body.add_special_tokens),
    )


def _tokenized(model: ServedModel, tokens: list[int], *, with_strings: bool) -> Response:
    strings = list(map(model.client.tokenizer.piece, tokens)) if with_strings else None
    longest = model.client.info.max_model_len
    return _json(
        Tokenized(count=len(tokens), max_model_len=longest, tokens=tokens, token_strs=strings)
    )


def _json(value: object) -> Response:
    return Response(encode(value), media_type="application/json")
