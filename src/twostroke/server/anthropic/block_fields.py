"""The messages of Anthropic's requests: turns, and the content blocks that they are made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from annotated_types import MaxLen, MinLen
from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from twostroke.server.anthropic.source_fields import (
    IGNORED_IN_BLOCKS,
    AnthropicFields,
    PartFields,
    ResultPartFields,
    texts_of,
)
from twostroke.server.http.body_fields import FirstMistake
from twostroke.server.http.validation_errors import explained

MAX_MESSAGES = 8192
MAX_BLOCKS = 8192  # over all messages, those in tool results and documents included
MAX_ID_LENGTH = 256


class BlockFields(PartFields):
    """One block of a message; which fields it needs is a matter of its type."""

    ignored: ClassVar[Mapping[str, str]] = {
        **IGNORED_IN_BLOCKS,
        "is_error": "the result's text says it; chat templates have no place for it",
    }
    needed: ClassVar[Mapping[str, tuple[str, ...]]] = {
        **PartFields.needed,
        "thinking": ("thinking",),
        "tool_use": ("id", "name", "input"),
        "tool_result": ("tool_use_id",),
    }

    type: Literal[
        "text",
        "document",
        "search_result",
        "thinking",
        "redacted_thinking",
        "tool_use",
        "tool_result",
    ]
    thinking: str | None = Field(
        None, description="A thought of the model, for chat templates that write it."
    )
    signature: str | None = Field(None, description="Not checked.")
    data: str | None = Field(None, description="Of a redacted thought; not read.")
    id: str | None = Field(None, max_length=MAX_ID_LENGTH)
    name: str | None = None
    input: dict[str, Any] | None = Field(None, description="What the model called a tool with.")
    tool_use_id: str | None = Field(None, max_length=MAX_ID_LENGTH)
    content: str | Annotated[list[ResultPartFields], FirstMistake()] | None = Field(
        None, description="What a tool answered, or the text of a search result."
    )

    @model_validator(mode="after")
    def _has_texts_in_a_search_result(self) -> Self:
        parts = self.content if isinstance(self.content, list) else []
        if self.type == "search_result" and any(part.type != "text" for part in parts):
            raise explained("a search result holds text blocks alone")
        return self

    def result_texts(self) -> list[str]:
        """The pieces of a tool's answer."""
        return texts_of(self.content)


class MessageFields(AnthropicFields):
    """One turn."""

    ignores_unknown: ClassVar[bool] = True
    nested: ClassVar[tuple[str, ...]] = ("content",)

    role: Literal["user", "assistant", "system"]
    content: str | Annotated[list[BlockFields], FirstMistake()]

    def blocks(self) -> list[BlockFields]:
        """The content as blocks."""
        if isinstance(self.content, str):
            return [text_block(self.content)]
        return self.content


def text_block(text: str) -> BlockFields:
    """A text as a block."""
    return BlockFields.model_construct(type="text", text=text)


def _check_num_blocks(messages: Any) -> Any:
    """Bound the blocks over all messages: an empty one is 30 bytes, and microseconds to check."""
    if _num_nested(messages, depth=3) > MAX_BLOCKS:
        raise PydanticCustomError(
            "too_long", "too long", {"max_length": MAX_BLOCKS, "of": "content blocks"}
        )
    return messages


def _num_nested(values: Any, depth: int) -> int:
    parts = [value for value in values if isinstance(value, dict)] if depth else []
    sources = [part["source"] for part in parts if isinstance(part.get("source"), dict)]
    contents = [part.get("content") for part in parts + sources]
    lists = [content for content in contents if isinstance(content, list)]
    return sum(len(content) + _num_nested(content, depth - 1) for content in lists)


Messages = Annotated[
    list[MessageFields],
    MinLen(1),
    MaxLen(MAX_MESSAGES),
    FirstMistake(),
    BeforeValidator(lambda v: _check_num_blocks(v) if isinstance(v, list) else v),
]
