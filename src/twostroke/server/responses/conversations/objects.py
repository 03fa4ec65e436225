"""What the routes of conversations take, and what they answer with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from annotated_types import MaxLen
from msgspec import Struct
from pydantic import BeforeValidator, Field

from twostroke.server.http.body_fields import FirstMistake
from twostroke.server.openai.field_limits import RequestFields
from twostroke.server.responses.items import Items, check_num_parts
from twostroke.server.responses.request import INCLUDABLE, METADATA_LIMITS, check_metadata

BroughtItems = Annotated[Items, BeforeValidator(check_num_parts)]


class _MetadataFields(RequestFields):
    limits: ClassVar[Mapping[str, Mapping[str, Any]]] = {"metadata": METADATA_LIMITS}

    metadata: dict[str, str] | None = Field(None, description="Kept and returned.")

    def checked_metadata(self) -> dict[str, str]:
        """Raises ``InvalidRequestError`` if it cannot be kept."""
        check_metadata(self.metadata or {})
        return self.metadata or {}


class ConversationRequest(_MetadataFields):
    """Body of ``POST /v1/conversations``."""

    nested: ClassVar[tuple[str, ...]] = ("items",)

    items: BroughtItems | None = Field(None, description="What it begins with.")


class ConversationUpdate(_MetadataFields):
    """Body of ``POST /v1/conversations/{id}``: the metadata is replaced."""


class NewItems(RequestFields):
    """Body of ``POST /v1/conversations/{id}/items``."""

    nested: ClassVar[tuple[str, ...]] = ("items",)

    items: BroughtItems = Field(description="They come after those that are there.")
    include: Annotated[list[INCLUDABLE], MaxLen(64), FirstMistake()] | None = Field(
        None, description="There is nothing to include."
    )


class ConversationObject(Struct, kw_only=True):
    """A conversation; its items have a route of their own."""

    id: str
    object: str = "conversation"
    created_at: int
    metadata: dict[str, str]


class DeletedConversation(Struct, kw_only=True):
    id: str
    object: str = "conversation.deleted"
    deleted: bool = True
