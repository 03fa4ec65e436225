"""The routes of stored responses: to read, stream again, cancel and delete them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from twostroke.core.errors import InvalidRequestError
from twostroke.gateway.caller import caller_of
from twostroke.server.http.api_document import (
    ERROR_RESPONSES,
    Responses,
    answer_responses,
)
from twostroke.server.http.json_response import json_response
from twostroke.server.http.sse import EventStream
from twostroke.server.responses.document import event_stream
from twostroke.server.responses.objects import DeletedResponse, InputItemList, ResponseObject
from twostroke.server.responses.paging import MAX_PAGE, page_of
from twostroke.server.responses.workroom import Workroom

STREAM_HINT = "create it with background: true and stream: true"


def stored_responses_router(workroom: Workroom) -> APIRouter:
    """The routes of one server; each key sees what it stored itself."""
    router = APIRouter(tags=["responses"])
    streamed = _answers(ResponseObject, "The response; or, streamed, its events.")
    streamed[200]["content"] |= event_stream()
    listed = _answers(InputItemList, "One page of them.")
    deleted = _answers(DeletedResponse, "It is deleted.")
    # Some clients are given the server's address without /v1.
    bare = "/responses/{response_id}"
    path = "/v1" + bare

    @router.get(bare, include_in_schema=False)
    @router.get(path, response_class=Response, responses=streamed)
    async def show_response(
        response_id: str,
        request: Request,
        stream: bool = False,
        starting_after: Annotated[int | None, Query(ge=0, le=2**31)] = None,
    ) -> Response:
        """A response as it is now; or its events, if it was begun in the background as a stream."""
        tenant = caller_of(request.scope).tenant
        if stream:
            after = -1 if starting_after is None else starting_after
            return await _events(workroom, tenant, response_id, after)
        if starting_after is not None:
            raise InvalidRequestError("starting_after needs stream=true", param="starting_after")
        return json_response(await workroom.read(tenant, response_id))

    @router.get(bare + "/input_items", include_in_schema=False)
    @router.get(path + "/input_items", response_class=Response, responses=listed)
    async def list_input_items(
        response_id: str,
        request: Request,
        limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 20,
        order: Literal["asc", "desc"] = "desc",
        after: str | None = None,
    ) -> Response:
        """The items that its request brought, the last one first."""
        stored = await workroom.store.get(caller_of(request.scope).tenant, response_id)
        items: list[dict[str, Any]] = msgspec.json.decode(stored.input)
        return json_response(page_of(items if order == "asc" else items[::-1], limit, after))

    cancelled = _answers(ResponseObject, "The response.")
    cancelled |= {429: ERROR_RESPONSES[429]}  # a POST counts as a request

    @router.post(bare + "/cancel", include_in_schema=False)
    @router.post(path + "/cancel", response_class=Response, responses=cancelled)
    async def cancel_response(response_id: str, request: Request) -> Response:
        """End a response that runs in the background; one that has ended stays as it is."""
        tenant = caller_of(request.scope).tenant
        return json_response(await _cancel(workroom, tenant, response_id))

    @router.delete(bare, include_in_schema=False)
    @router.delete(path, response_class=Response, responses=deleted)
    async def delete_response(response_id: str, request: Request) -> Response:
        """Forget a response; one that still runs is ended before."""
        await workroom.delete(caller_of(request.scope).tenant, response_id)
        return json_response(DeletedResponse(id=response_id))

    return router


def _answers(answer: type[msgspec.Struct], description: str) -> Responses:
    """What a route may answer, for the API document."""
    errors: Responses = {status: ERROR_RESPONSES[status] for status in (400, 401, 403, 500)}
    missing = "No response of this id is stored for this key."
    errors |= {404: {**ERROR_RESPONSES[404], "description": missing}}
    return answer_responses(answer, description) | errors


async def _cancel(workroom: Workroom, tenant: str, response_id: str) -> ResponseObject:
    response = await workroom.cancel(tenant, response_id)
    if not response.background:
        raise InvalidRequestError(
            "only a response in the background can be cancelled",
            param="response_id",
            hint="close the connection to end another one",
        )
    return response


async def _events(workroom: Workroom, tenant: str, response_id: str, after: int) -> Response:
    """The events after number ``after``: those there were, and those to come."""
    run = workroom.running(tenant, response_id)
    if run is not None and run.keeps_events:
        stream = EventStream(lambda: run.leave(stream))
        run.stream_to(stream, after)
        return stream
    kept = None if run is not None else await workroom.events(tenant, response_id)
    if kept is None:
        raise InvalidRequestError(
            "the events of this response were not kept", param="stream", hint=STREAM_HINT
        )
    frames = kept.split(b"\n\n")[after + 1 : -1]
    body = b"".join(frame + b"\n\n" for frame in frames)
    return Response(body, media_type=EventStream.media_type)
