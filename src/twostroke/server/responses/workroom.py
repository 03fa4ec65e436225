"""The responses of one server: those that run in the background, and the store of all others.

Conversations lie in the same store.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec

from twostroke.core.errors import InvalidRequestError
from twostroke.server.generation.generation import Generation
from twostroke.server.http.body_fields import check_unicode
from twostroke.server.http.json_response import encode_json
from twostroke.server.responses.conversations.store import ConversationStore
from twostroke.server.responses.items import (
    MANY_ITEMS,
    GivenItem,
    Item,
    ItemReference,
    as_items,
    listed_items,
    resolved,
)
from twostroke.server.responses.objects import ResponseObject
from twostroke.server.responses.request import ResponsesRequest
from twostroke.server.responses.run import ResponseRun
from twostroke.server.responses.store import ResponseStore
from twostroke.server.responses.table import StoredResponse


class Brought(NamedTuple):
    """The items that a request goes on from, as they are kept, and its own, as they came."""

    before: list[dict[str, Any]]
    own: Sequence[Item]

    @property
    def has_many(self) -> bool:
        """Whether work on all of them belongs on a thread."""
        return len(self.before) + len(self.own) > MANY_ITEMS

    def listed(self) -> list[dict[str, Any]]:
        """Its own items as they are kept and listed."""
        return listed_items(self.own, self.before)


class Workroom:
    """What all routes share.

    Attributes:
        store: Responses that have ended, and the first state of those in the background.
        conversations: In the same store.
    """

    def __init__(self, store: ResponseStore) -> None:
        self.store = store
        self.conversations = ConversationStore(store)
        self._running: dict[str, tuple[str, ResponseRun]] = {}

    async def brought(self, tenant: str, body: ResponsesRequest) -> Brought:
        """What a request goes on from, and what it brings.

        Raises:
            InvalidRequestError: It refers to what is not stored.
        """
        before = await self._before(tenant, body)
        given = await self.without_references(tenant, body.input or [])
        return Brought(before, as_items(given))

    async def without_references(
        self, tenant: str, given: str | Sequence[GivenItem], field: str = "input"
    ) -> str | list[Item]:
        """Items of the body's ``field``, with those that they refer to."""
        if isinstance(given, str):
            return given
        ids = [item.id for item in given if isinstance(item, ItemReference)]
        check_unicode(field, ids)
        return resolved(given, await self.store.items(tenant, ids) if ids else {}, field)

    async def _before(self, tenant: str, body: ResponsesRequest) -> list[dict[str, Any]]:
        if (name := body.conversation_id) is not None:
            return (await self.conversations.read(tenant, name, "conversation")).items
        if (previous := body.previous_response_id) is None:
            return []
        if self.running(tenant, previous) is not None:
            raise InvalidRequestError(
                f"the response {previous!a} has not ended",
                param="previous_response_id",
                hint="wait for it, or cancel it",
            )
        turns = await self.store.conversation(tenant, previous)
        return [item for turn in turns for item in turn.input + turn.output]

    def begin(self, run: ResponseRun, generation: Generation, tenant: str, given: bytes) -> None:
        """Start a run that is to be stored; one in the background can be read from here on.

        Args:
            given: JSON of its input items.
        """
        response = run.response
        if response.background:
            self._running[response.id] = (tenant, run)
            first = _stored(run, tenant, given, encode_json(response))
            self.store.put(response.id, lambda: first)
        run.begin(generation)

    def keep(self, run: ResponseRun, tenant: str, given: bytes) -> None:
        """Store a run that has ended, and add its items to its conversation."""
        response = run.response
        self._running.pop(response.id, None)
        # Encoded on the store's thread: nothing changes it any more.
        if response.store:
            self.store.put(response.id, partial(_stored, run, tenant, given))
        if response.conversation is not None and response.status in ("completed", "incomplete"):

            def items() -> list[dict[str, Any]]:
                return [*msgspec.json.decode(given), *msgspec.to_builtins(response.output)]

            self.conversations.extend(tenant, response.conversation.id, items)

    def running(self, tenant: str, response_id: str) -> ResponseRun | None:
        """A run of this tenant that goes on in the background."""
        owner, run = self._running.get(response_id, (None, None))
        return run if owner == tenant else None

    async def read(self, tenant: str, response_id: str) -> ResponseObject:
        """The response as it is now.

        Raises:
            ResponseNotFoundError: This tenant has none under that id.
        """
        if (run := self.running(tenant, response_id)) is not None:
            return run.snapshot()
        stored = await self.store.get(tenant, response_id)
        return msgspec.json.decode(stored.response, type=ResponseObject)

    async def cancel(self, tenant: str, response_id: str) -> ResponseObject:
        """End a response of the background, if it has not ended."""
        if (run := self.running(tenant, response_id)) is not None:
            run.cancel()
            return run.response
        return await self.read(tenant, response_id)

    async def delete(self, tenant: str, response_id: str) -> None:
        """Forget a response; one that still runs is ended before."""
        if (run := self.running(tenant, response_id)) is not None:
            run.cancel()
        await self.store.delete(tenant, response_id)

    async def events(self, tenant: str, response_id: str) -> bytes | None:
        """All events of a response that has ended; ``None`` if they were not kept."""
        return (await self.store.get(tenant, response_id)).events


def _stored(
    run: ResponseRun, tenant: str, given: bytes, encoded: bytes | None = None
) -> StoredResponse:
    response = run.response
    return StoredResponse(
        response.id,
        tenant,
        response.previous_response_id,
        encoded is None,
        encode_json(response) if encoded is None else encoded,
        given,
        run.events() if encoded is None else None,
    )
