"""The routes of conversations and of their items."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from twostroke.gateway.caller import caller_of
from twostroke.server.http.api_document import ERROR_RESPONSES, Responses, answer_responses
from twostroke.server.http.body_json import StrictRoute
from twostroke.server.http.errors import ConversationNotFoundError
from twostroke.server.http.ignored_header import ignored_header
from twostroke.server.http.json_response import json_response
from twostroke.server.responses.conversations.objects import (
    BroughtItems,
    ConversationObject,
    ConversationRequest,
    ConversationUpdate,
    DeletedConversation,
    NewItems,
)
from twostroke.server.responses.conversations.store import StoredConversation
from twostroke.server.responses.items import listed_items
from twostroke.server.responses.objects import InputItemList
from twostroke.server.responses.paging import MAX_PAGE, page_of
from twostroke.server.responses.workroom import Workroom

PATH = "/v1/conversations"
ONE = PATH + "/{conversation_id}"
ITEMS = ONE + "/items"
JsonItems = list[dict[str, Any]]


def conversations_router(workroom: Workroom) -> APIRouter:
    """The routes of conversations; each key sees its own."""
    router = APIRouter(route_class=StrictRoute, tags=["conversations"])
    shown = _answers(ConversationObject, "The conversation.")
    created = _answers(ConversationObject, "The conversation.", has_body=True)
    deleted = _answers(DeletedConversation, "It is deleted.")
    conversations = workroom.conversations

    @router.post(PATH, response_class=Response, responses=created)
    async def create_conversation(body: ConversationRequest, request: Request) -> Response:
        """Begin a conversation, with items or without."""
        tenant = caller_of(request.scope).tenant
        items = await _in_full(workroom, tenant, body.items or [])
        about = await conversations.create(tenant, body.checked_metadata(), items)
        return json_response(about, ignored_header(body.dropped_fields()))

    @router.get(ONE, response_class=Response, responses=shown)
    async def show_conversation(conversation_id: str, request: Request) -> Response:
        """A conversation, without its items."""
        tenant = caller_of(request.scope).tenant
        return json_response((await conversations.read(tenant, conversation_id)).about)

    @router.post(ONE, response_class=Response, responses=created)
    async def update_conversation(
        conversation_id: str, body: ConversationUpdate, request: Request
    ) -> Response:
        """Give a conversation other metadata."""
        metadata = body.checked_metadata()

        def change(stored: StoredConversation) -> StoredConversation:
            about = msgspec.structs.replace(stored.about, metadata=metadata)
            return stored._replace(about=about)

        tenant = caller_of(request.scope).tenant
        changed = await conversations.change(tenant, conversation_id, change)
        return json_response(changed.about, ignored_header(body.dropped_fields()))

    @router.delete(ONE, response_class=Response, responses=deleted)
    async def delete_conversation(conversation_id: str, request: Request) -> Response:
        """Forget a conversation; responses that went on with it stay."""
        await conversations.delete(caller_of(request.scope).tenant, conversation_id)
        return json_response(DeletedConversation(id=conversation_id))

    _add_item_routes(router, workroom)
    return router


def _add_item_routes(router: APIRouter, workroom: Workroom) -> None:
    conversations = workroom.conversations
    added = _answers(InputItemList, "The items that were added.", has_body=True)
    listed = _answers(InputItemList, "One page of them.")
    one = _answers(ConversationObject, "The item.")
    one[200]["content"] = {"application/json": {"schema": {"type": "object"}}}
    without = _answers(ConversationObject, "The conversation without it.")

    @router.post(ITEMS, response_class=Response, responses=added)
    async def add_items(conversation_id: str, body: NewItems, request: Request) -> Response:
        """Add items at the end of a conversation."""
        tenant = caller_of(request.scope).tenant
        given = await workroom.without_references(tenant, body.items, "items")
        new: JsonItems = []

        def change(stored: StoredConversation) -> StoredConversation:
            new[:] = listed_items(given, stored.items)
            return stored._replace(items=stored.items + new)

        await conversations.change(tenant, conversation_id, change)
        page = page_of(new, max(1, len(new)), None)
        return json_response(page, ignored_header(body.dropped_fields()))

    @router.get(ITEMS, response_class=Response, responses=listed)
    async def list_items(
        conversation_id: str,
        request: Request,
        limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 20,
        order: Literal["asc", "desc"] = "desc",
        after: str | None = None,
    ) -> Response:
        """The items of a conversation, the last one first."""
        tenant = caller_of(request.scope).tenant
        items = (await conversations.read(tenant, conversation_id)).items
        return json_response(page_of(items if order == "asc" else items[::-1], limit, after))

    @router.get(ITEMS + "/{item_id}", response_class=Response, responses=one)
    async def show_item(conversation_id: str, item_id: str, request: Request) -> Response:
        """One item of a conversation."""
        tenant = caller_of(request.scope).tenant
        items = (await conversations.read(tenant, conversation_id)).items
        return json_response(items[_place(items, item_id)])

    @router.delete(ITEMS + "/{item_id}", response_class=Response, responses=without)
    async def delete_item(conversation_id: str, item_id: str, request: Request) -> Response:
        """Take an item out of a conversation."""

        def change(stored: StoredConversation) -> StoredConversation:
            place = _place(stored.items, item_id)
            return stored._replace(items=stored.items[:place] + stored.items[place + 1 :])

        tenant = caller_of(request.scope).tenant
        return json_response((await conversations.change(tenant, conversation_id, change)).about)


async def _in_full(workroom: Workroom, tenant: str, given: BroughtItems) -> JsonItems:
    return listed_items(await workroom.without_references(tenant, given, "items"))


def _place(items: list[dict[str, Any]], item_id: str) -> int:
    for place, item in enumerate(items):
        if item["id"] == item_id:
            return place
    raise ConversationNotFoundError(
        f"the conversation has no item {item_id[:100]!a}", param="item_id"
    )


def _answers(
    answer: type[msgspec.Struct], description: str, *, has_body: bool = False
) -> Responses:
    """What a route may answer, for the API document."""
    statuses: Mapping[bool, tuple[int, ...]] = {
        False: (400, 401, 403, 429, 500),
        True: (400, 401, 403, 413, 429, 500, 503),
    }
    errors: Responses = {status: ERROR_RESPONSES[status] for status in statuses[has_body]}
    missing = "No conversation of this id is stored for this key."
    errors |= {404: {**ERROR_RESPONSES[404], "description": missing}}
    return answer_responses(answer, description, has_body=has_body) | errors
