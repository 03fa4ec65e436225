"""The messages of Anthropic's requests: turns, and the content blocks that they are made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from annotated_types import MaxLen, MinLen
from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from twostroke.core.sampling_params import MAX_STOP_STRING_LENGTH, MAX_STOP_STRINGS
from twostroke.server.http.body_fields import FirstMistake, StrictModel

MAX_MESSAGES = 8192
MAX_BLOCKS = 8192  # over all messages, those in tool results included
MAX_ID_LENGTH = 256

_CACHE_ALWAYS = "prefixes are cached as long as there is room"
# Keys of blocks, which ignore unknown ones as well: these are in the API document.
_IGNORED_IN_BLOCKS = {
    "cache_control": _CACHE_ALWAYS,
    "citations": "answers have none",
}
LIMITS: Mapping[str, Mapping[str, Any]] = {
    "max_tokens": {"minimum": 0},
    "temperature": {"minimum": 0, "maximum": 100},
    "top_k": {"minimum": -1},
    "top_p": {"exclusiveMinimum": 0, "maximum": 1},
    "stop_sequences": {
        "maxItems": MAX_STOP_STRINGS,
        "items": {"type": "string", "minLength": 1, "maxLength": MAX_STOP_STRING_LENGTH},
    },
}


class AnthropicFields(StrictModel):
    """The base of the request objects of this API."""

    limits: ClassVar[Mapping[str, Mapping[str, Any]]] = LIMITS


class TextFields(AnthropicFields):
    """A text: of the system prompt, or within a tool's result."""

    ignores_unknown: ClassVar[bool] = True
    ignored: ClassVar[Mapping[str, str]] = _IGNORED_IN_BLOCKS

    type: Literal["text"]
    text: str


class BlockFields(AnthropicFields):
    """One block of a message; which fields it needs is a matter of its type."""

    ignores_unknown: ClassVar[bool] = True
    ignored: ClassVar[Mapping[str, str]] = {
        **_IGNORED_IN_BLOCKS,
        "is_error": "the result's text says it; chat templates have no place for it",
    }
    nested: ClassVar[tuple[str, ...]] = ("content",)
    needed: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "text": ("text",),
        "thinking": ("thinking",),
        "tool_use": ("id", "name", "input"),
        "tool_result": ("tool_use_id",),
    }

    type: Literal["text", "thinking", "redacted_thinking", "tool_use", "tool_result"]
    text: str | None = None
    thinking: str | None = Field(
        None, description="A thought of the model, for chat templates that write it."
    )
    signature: str | None = Field(None, description="Not checked.")
    data: str | None = Field(None, description="Of a redacted thought; not read.")
    id: str | None = Field(None, max_length=MAX_ID_LENGTH)
    name: str | None = None
    input: dict[str, Any] | None = Field(None, description="What the model called a tool with.")
    tool_use_id: str | None = Field(None, max_length=MAX_ID_LENGTH)
    content: str | Annotated[list[TextFields], FirstMistake()] | None = Field(
        None, description="What a tool answered: text alone."
    )

    @model_validator(mode="after")
    def _has_what_its_type_needs(self) -> Self:
        for field in self.needed.get(self.type, ()):
            if getattr(self, field) is None:
                how = "null" if field in self.model_fields_set else "missing"
                raise PydanticCustomError("missing_field", "missing", {"field": field, "how": how})
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


def texts_of(content: str | Iterable[TextFields] | None) -> list[str]:
    """The pieces of a content that is text alone."""
    if isinstance(content, str):
        return [content]
    return [block.text for block in content or ()]


def _check_num_blocks(messages: Any) -> Any:
    """Bound the blocks over all messages: an empty one is 30 bytes, and microseconds to check."""
    if _num_nested(messages, depth=2) > MAX_BLOCKS:
        raise PydanticCustomError(
            "too_long", "too long", {"max_length": MAX_BLOCKS, "of": "content blocks"}
        )
    return messages


def _num_nested(values: Any, depth: int) -> int:
    contents = [v.get("content") for v in values if isinstance(v, dict)] if depth else []
    lists = [content for content in contents if isinstance(content, list)]
    return sum(len(content) + _num_nested(content, depth - 1) for content in lists)


Messages = Annotated[
    list[MessageFields],
    MinLen(1),
    MaxLen(MAX_MESSAGES),
    FirstMistake(),
    BeforeValidator(lambda v: _check_num_blocks(v) if isinstance(v, list) else v),
]
