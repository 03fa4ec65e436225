"""Body of ``POST /v1/cache/prefixes``."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from twostroke.core.errors import InvalidRequestError
from twostroke.server.http.body_fields import check_unicode
from twostroke.server.openai.chat_messages import Messages
from twostroke.server.openai.field_limits import PromptTokens, RequestFields
from twostroke.server.openai.generation_fields import Label

DEFAULT_TTL, MAX_TTL = 300.0, 86_400.0


class PinRequest(RequestFields):
    """A text that is computed if need be, and then pinned for a time."""

    nested: ClassVar[tuple[str, ...]] = ("messages",)

    model: str | None = Field(
        None, description="A name that /v1/models lists; by default the only one."
    )
    tokens: PromptTokens | None = Field(None, description="Token ids. Either this or messages.")
    messages: Messages | None = Field(
        None, description="The start of a conversation. Either this or tokens."
    )
    ttl: float = Field(
        DEFAULT_TTL, gt=0, le=MAX_TTL, description="For how many seconds it is pinned."
    )
    cache_salt: Label | None = Field(
        None, description="Requests find the prefix only if they have the same."
    )

    def check_combinations(self) -> None:
        """Refuse combinations that have no meaning."""
        if (self.tokens is None) == (self.messages is None):
            raise InvalidRequestError(
                "send tokens or messages, and not both", param="tokens", hint="send one of the two"
            )
        check_unicode("cache_salt", [self.cache_salt or ""])
