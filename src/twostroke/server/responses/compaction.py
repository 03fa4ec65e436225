"""What a conversation takes of the context: ``input_tokens`` counts it, ``compact`` shortens it.

A compacted conversation is its user's messages and one item, in which the model has summed up the
rest. That item is opaque to clients, who send all of it back as the next input.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

from fastapi import APIRouter, Request
from msgspec import Struct
from pydantic import BeforeValidator, Field
from starlette.responses import Response

from twostroke.core.errors import InvalidRequestError, RequestFailedError
from twostroke.gateway.caller import caller_of
from twostroke.http.request_id import name_request
from twostroke.server.generation.encoding import beside_loop
from twostroke.server.generation.generation import Generation
from twostroke.server.http.api_document import ERROR_RESPONSES, answer_responses
from twostroke.server.http.body_json import StrictRoute
from twostroke.server.http.ignored_header import ignored_header
from twostroke.server.http.json_response import json_response
from twostroke.server.http.sse import run_while_connected
from twostroke.server.openai.field_limits import RequestFields
from twostroke.server.openai.generation_fields import Label
from twostroke.server.responses.items import (
    COMPACTED,
    MAX_ID_LENGTH,
    Items,
    MessageItem,
    check_num_parts,
    encode_items,
)
from twostroke.server.responses.objects import OutputMessage, ResponseObject, ResponseUsage
from twostroke.server.responses.open_items import new_id
from twostroke.server.responses.output_writer import COMPLETED
from twostroke.server.responses.request import ResponsesRequest
from twostroke.server.responses.response_call import NAMES, prepare_response, read_response
from twostroke.server.responses.routes import first_state
from twostroke.server.responses.run import ResponseRun
from twostroke.server.responses.workroom import Brought, Workroom
from twostroke.server.state.server_state import ServerState

MAX_SUMMARY = 2048  # tokens
SHARE = 4  # at most this part of the context
ASKED = (
    "Sum up the conversation so far, for a reader who goes on with it and sees nothing else of it"
    " but my messages. Say what was asked, what was found and done (names, paths, numbers and"
    " decisions verbatim), what failed, and what is left to do. Write only the summary."
)


class CompactRequest(RequestFields):
    """Body of ``POST /v1/responses/compact``."""

    nested: ClassVar[tuple[str, ...]] = ("input",)

    model: str | None = Field(
        None, description="A name that /v1/models lists; by default the only one."
    )
    input: str | Annotated[Items, BeforeValidator(check_num_parts)] | None = Field(
        None, description="A text, or items; may be left out after a previous response."
    )
    instructions: str | None = Field(None, description="The system prompt, which is not summed up.")
    previous_response_id: str | None = Field(None, max_length=MAX_ID_LENGTH)
    prompt_cache_key: Label | None = None


class CompactedResponse(Struct, kw_only=True):
    """A conversation in short: the next request's input."""

    id: str
    object: str = "response.compaction"
    created_at: int
    output: list[dict[str, Any]]
    usage: ResponseUsage


class InputTokens(Struct, kw_only=True):
    """How many tokens a request's prompt has."""

    object: str = "response.input_tokens"
    input_tokens: int


def compaction_router(state: ServerState, workroom: Workroom) -> APIRouter:
    """The routes of compaction."""
    router = APIRouter(route_class=StrictRoute, tags=["responses"])
    compacted = answer_responses(CompactedResponse, "The next input.", has_body=True)
    counted = answer_responses(InputTokens, "The number.", has_body=True)

    @router.post("/responses/compact", include_in_schema=False)
    @router.post(
        "/v1/responses/compact", response_class=Response, responses=compacted | ERROR_RESPONSES
    )
    async def compact_response(body: CompactRequest, request: Request) -> Response:
        """Make a conversation shorter: its user's messages, and a summary of all of it."""
        ask = ResponsesRequest.model_construct(
            **{name: getattr(body, name) for name in CompactRequest.model_fields},
            truncation="auto",
            store=False,
            tool_choice="none",
        )
        ask.check_combinations()
        tenant = caller_of(request.scope).tenant
        brought = await workroom.brought(tenant, ask)
        items = await beside_loop(lambda: _in_full(brought), slow=brought.has_many)
        if not items:
            raise InvalidRequestError(
                "input is missing", param="input", hint="send a text, or a list of items"
            )
        made = await _summary(state, ask, brought, request)
        if made is None:
            return Response(status_code=499)
        response, left_out = made
        dropped = await beside_loop(body.dropped_fields, slow=brought.has_many)
        headers = ignored_header([*dropped, *left_out])
        return json_response(_compacted(response, items), headers)

    @router.post("/responses/input_tokens", include_in_schema=False)
    @router.post(
        "/v1/responses/input_tokens", response_class=Response, responses=counted | ERROR_RESPONSES
    )
    async def count_input_tokens(body: ResponsesRequest, request: Request) -> Response:
        """The tokens of the prompt that a request for a response would have; nothing runs."""
        model = state.model_for_new_work(body.model).named(body.model)
        body.check_combinations()
        caller = caller_of(request.scope)
        brought = await workroom.brought(caller.tenant, body)
        asked = await read_response(model, body, brought)
        request_id = name_request(request.scope, "resp")
        prepared = await prepare_response(model, asked, request_id, caller)
        tokens = InputTokens(input_tokens=len(prepared.prompt.token_ids))
        return json_response(tokens, ignored_header(asked.call.ignored))

    return router


def _in_full(brought: Brought) -> list[dict[str, Any]]:
    """All items of a conversation, which an answer can show."""
    own = brought.listed()
    encode_items(own)  # refused rather than shown
    return [*brought.before, *own]


async def _summary(
    state: ServerState,
    ask: ResponsesRequest,
    brought: Brought,
    request: Request,
) -> tuple[ResponseObject, Sequence[str]] | None:
    """The model's summary of items, and what it leaves out; ``None``: the client has left."""
    model = state.model_for_new_work(ask.model).named(ask.model)
    caller = caller_of(request.scope)
    request_id = name_request(request.scope, "resp")
    ask.max_output_tokens = max(1, min(MAX_SUMMARY, model.client.info.max_model_len // SHARE))
    question = MessageItem(role="user", content=ASKED)
    asking = brought._replace(own=[*brought.own, question])
    asked = await read_response(model, ask, asking)
    prepared = await prepare_response(model, asked, request_id, caller)
    run = ResponseRun(
        first_state(ask, new_id("resp"), model.name, prepared.request.params),
        prepared.reading.make_parts(),
        model.tokenizer,
        called={},
        keeps_events=False,
        on_end=lambda run: None,
    )
    with NAMES.applied():
        generation = Generation(model, caller, request_id, [prepared.request], streamed=False)
    run.begin(generation)

    async def ended() -> tuple[ResponseObject, Sequence[str]]:
        await run.ended
        return run.response, asked.left_out

    return await run_while_connected(ended(), request.receive, run.abandon)


def _compacted(response: ResponseObject, items: list[dict[str, Any]]) -> CompactedResponse:
    """The user's messages and the summary.

    Raises:
        RequestFailedError: There is no summary, or not all of it: what it lacks would be lost.
    """
    messages = [item for item in response.output if isinstance(item, OutputMessage)]
    summary = "".join(part.text for message in messages for part in message.content).strip()
    if response.status != COMPLETED or not summary:
        raise RequestFailedError(
            f"the model's summary is {response.status if summary else 'blank'}, and the"
            " conversation was left as it is",
            hint="try again, or go on with the conversation itself",
        )
    said = [item for item in items if item.get("role") == "user"]
    item = {
        "type": "compaction",
        "id": new_id("cmp"),
        "encrypted_content": f"{COMPACTED}{summary}",
    }
    assert response.usage is not None  # it has ended
    return CompactedResponse(
        id=response.id, created_at=int(time.time()), output=[*said, item], usage=response.usage
    )
