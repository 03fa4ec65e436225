"""Conversations in the store of responses: each is a row, whose input is all of its items.

So they share its bound, its shares of keys and its file, and their items can be referred to. Each
change is made whole on the store's thread: of two responses that end at once none loses items.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from twostroke.core.errors import InvalidRequestError
from twostroke.server.http.errors import ConversationNotFoundError
from twostroke.server.responses.conversations.objects import ConversationObject
from twostroke.server.responses.items import encode_items
from twostroke.server.responses.open_items import new_id
from twostroke.server.responses.store import CONVERSATION_PREFIX, ResponseStore
from twostroke.server.responses.table import StoredResponse

logger = logging.getLogger(__name__)

JsonItems = list[dict[str, Any]]


class StoredConversation(NamedTuple):
    """A conversation and its items, oldest first."""

    about: ConversationObject
    items: JsonItems


class ConversationStore:
    """Conversations by key.

    Args:
        store: Where they lie.
    """

    def __init__(self, store: ResponseStore) -> None:
        self._store = store

    async def create(
        self, tenant: str, metadata: Mapping[str, str], items: Sequence[Mapping[str, Any]]
    ) -> ConversationObject:
        """A new one.

        Raises:
            InvalidRequestError: It is too large for the store.
        """
        about = ConversationObject(
            id=new_id(CONVERSATION_PREFIX),
            created_at=int(time.time()),
            metadata=dict(metadata),
        )
        row = StoredResponse(
            about.id, tenant, None, True, msgspec.json.encode(about), encode_items(items, "items")
        )
        if not await self._store.put_now(row):
            raise _full("items")
        return about

    async def read(
        self, tenant: str, conversation_id: str, param: str = "conversation_id"
    ) -> StoredConversation:
        """A conversation of this key.

        Raises:
            ConversationNotFoundError: There is none; ``param`` named it.
        """
        _check(conversation_id, param)
        found = await self._store.read(tenant, conversation_id, _decoded)
        if found is None:
            raise _missing(conversation_id, param)
        return found

    async def change(
        self,
        tenant: str,
        conversation_id: str,
        change: Callable[[StoredConversation], StoredConversation],
    ) -> StoredConversation:
        """Replace a conversation by what ``change`` makes of it, and return that.

        Raises:
            ConversationNotFoundError: There is none.
            InvalidRequestError: It would be too large.
        """
        _check(conversation_id, "conversation_id")
        changed: list[StoredConversation] = []

        def change_row(row: StoredResponse) -> StoredResponse:
            changed.append(change(_decoded(row)))
            return _encoded(row, changed[0])

        fits = await self._store.change(tenant, conversation_id, change_row)
        if fits is None:
            raise _missing(conversation_id, "conversation_id")
        if not fits:
            raise _full("items")
        return changed[0]

    def extend(self, tenant: str, conversation_id: str, make: Callable[[], JsonItems]) -> None:
        """Add items soon; a failure is logged.

        Args:
            make: Gives them, on the store's thread.
        """

        def change_row(row: StoredResponse) -> StoredResponse:
            about, items = _decoded(row)
            return _encoded(row, StoredConversation(about, items + make()))

        self._store.change_soon(tenant, conversation_id, change_row)

    async def delete(self, tenant: str, conversation_id: str) -> None:
        """Forget a conversation; responses that went on with it stay.

        Raises:
            ConversationNotFoundError: There is none.
        """
        _check(conversation_id, "conversation_id")
        if not await self._store.remove(tenant, conversation_id):
            raise _missing(conversation_id, "conversation_id")


def _decoded(row: StoredResponse) -> StoredConversation:
    about = msgspec.json.decode(row.response, type=ConversationObject)
    return StoredConversation(about, msgspec.json.decode(row.input))


def _encoded(row: StoredResponse, conversation: StoredConversation) -> StoredResponse:
    about = msgspec.json.encode(conversation.about)
    return row._replace(response=about, input=encode_items(conversation.items, "items"))


def _check(conversation_id: str, param: str) -> None:
    """Refuse ids of responses, which lie beside."""
    if not conversation_id.startswith(f"{CONVERSATION_PREFIX}_"):
        raise _missing(conversation_id, param)


def _missing(conversation_id: str, param: str) -> ConversationNotFoundError:
    return ConversationNotFoundError(
        f"no conversation {conversation_id[:100]!a} is stored for this key", param=param
    )


def _full(param: str) -> InvalidRequestError:
    return InvalidRequestError(
        "the conversation is too large for this server's store",
        param=param,
        hint="begin a new one, or start the server with a larger --responses-store-size",
    )
