"""The items of a request's input, as clients send them, and as they are kept and listed.

Items are what the output of a former response is made of, too, so whatever this API gave may come
back: ``id``, ``status``, ``annotations`` and the like are accepted everywhere.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from annotated_types import MaxLen
from pydantic import AfterValidator, Discriminator, Field, Tag, TypeAdapter, model_validator
from pydantic_core import PydanticCustomError

from twostroke.core.errors import InvalidRequestError
from twostroke.server.http.body_fields import FirstMistake, check_unicode
from twostroke.server.http.validation_errors import explained
from twostroke.server.openai.field_limits import MAX_MESSAGE_PARTS, MAX_MESSAGES, OpenAIFields
from twostroke.server.responses.open_items import new_id

MANY_ITEMS = 256  # more of a conversation are read on a thread
MAX_ID_LENGTH = 256
KINDS = (
    *("message", "function_call", "function_call_output", "reasoning", "compaction"),
    "item_reference",
)
# What stands in for a conversation is opaque to clients, but no secret: it is their own.
COMPACTED = "twostroke.summary:"

ItemId = Annotated[str, MaxLen(MAX_ID_LENGTH)]
Status = Literal["in_progress", "completed", "incomplete"]


class TextPart(OpenAIFields):
    """One piece of a message or of a tool's output; there is text only."""

    ignores_unknown: ClassVar[bool] = True

    type: Literal["input_text", "output_text", "text", "refusal"]
    text: str | None = None
    refusal: str | None = None
    annotations: Any = Field(None, description="Of an answer that is sent back; not read.")
    logprobs: Any = Field(None, description="Of an answer that is sent back; not read.")

    @model_validator(mode="after")
    def _has_text(self) -> Self:
        field = "refusal" if self.type == "refusal" else "text"
        if getattr(self, field) is None:
            how = "null" if field in self.model_fields_set else "missing"
            raise PydanticCustomError("missing_field", "missing", {"field": field, "how": how})
        return self

    @property
    def content(self) -> str:
        return (self.refusal if self.type == "refusal" else self.text) or ""


Parts = Annotated[list[TextPart], MaxLen(MAX_MESSAGE_PARTS), FirstMistake()]


class _Item(OpenAIFields):
    ignores_unknown: ClassVar[bool] = True

    id: ItemId | None = None
    status: Status | None = None


class MessageItem(_Item):
    """What was said; ``type`` may be left out."""

    nested: ClassVar[tuple[str, ...]] = ("content",)

    type: Literal["message"] | None = None
    role: Literal["user", "assistant", "system", "developer"]
    content: str | Parts
    phase: Any = Field(default=None, description="Not read.")


class FunctionCallItem(_Item):
    """A call that the model made."""

    type: Literal["function_call"]
    call_id: ItemId
    name: str = Field(description="As the model wrote it, even if there is no such tool.")
    namespace: ItemId | None = Field(None, description="Of a function within one.")
    arguments: str = Field(description="A JSON object, as text.")


class FunctionCallOutputItem(_Item):
    """What a call gave."""

    nested: ClassVar[tuple[str, ...]] = ("output",)

    type: Literal["function_call_output"]
    call_id: ItemId
    output: str | Parts


class ThoughtPart(OpenAIFields):
    """A piece of a thought, or of what another server made of one."""

    ignores_unknown: ClassVar[bool] = True

    type: Literal["reasoning_text", "summary_text"]
    text: str


Thoughts = Annotated[list[ThoughtPart], MaxLen(MAX_MESSAGE_PARTS), FirstMistake()]


class ReasoningItem(_Item):
    """A thought of the model; without ``content`` its ``summary`` is taken for it."""

    nested: ClassVar[tuple[str, ...]] = ("summary", "content")

    type: Literal["reasoning"]
    summary: Thoughts | None = None
    content: Thoughts | None = None


def _check_own(content: str) -> str:
    if not content.startswith(COMPACTED):
        raise explained("this was not made here, and cannot be read", "send the items themselves")
    return content


class CompactionItem(OpenAIFields):
    """What ``/v1/responses/compact`` made of a conversation."""

    ignores_unknown: ClassVar[bool] = True

    type: Literal["compaction"]
    id: ItemId | None = None
    encrypted_content: Annotated[str, AfterValidator(_check_own)]

    @property
    def text(self) -> str:
        """What the model is told of it."""
        summary = self.encrypted_content.removeprefix(COMPACTED)
        return f"Summary of the conversation before this point:\n\n{summary}"


class ItemReference(OpenAIFields):
    """An item of a stored response, by its id."""

    ignores_unknown: ClassVar[bool] = True

    type: Literal["item_reference"]
    id: ItemId


def _tag(data: Any) -> str:
    """A union's tag, in brackets: those are left out of the names of fields."""
    kind = data.get("type") if isinstance(data, dict) else getattr(data, "type", None)
    return f"item[{'message' if kind is None else kind}]"


Item = MessageItem | FunctionCallItem | FunctionCallOutputItem | ReasoningItem | CompactionItem
_UNKNOWN = "must be one of " + ", ".join(KINDS) + "; this server has no other items"
GivenItem = Annotated[
    Annotated[MessageItem, Tag("item[message]")]
    | Annotated[FunctionCallItem, Tag("item[function_call]")]
    | Annotated[FunctionCallOutputItem, Tag("item[function_call_output]")]
    | Annotated[ReasoningItem, Tag("item[reasoning]")]
    | Annotated[CompactionItem, Tag("item[compaction]")]
    | Annotated[ItemReference, Tag("item[item_reference]")],
    Discriminator(
        _tag, custom_error_type="unsupported_item", custom_error_message=f"its type {_UNKNOWN}"
    ),
]


def check_num_parts(items: Any) -> Any:
    """Bound the parts over all items, as those of a chat's messages are."""
    if isinstance(items, list):
        lists = [
            value
            for item in items
            if isinstance(item, dict)
            for value in item.values()
            if isinstance(value, list)
        ]
        if sum(map(len, lists)) > MAX_MESSAGE_PARTS:
            limit = {"max_length": MAX_MESSAGE_PARTS, "of": "parts of content"}
            raise PydanticCustomError("too_long", "too long", limit)
    return items


Items = Annotated[list[GivenItem], MaxLen(MAX_MESSAGES), FirstMistake()]
_ITEMS: TypeAdapter[list[GivenItem]] = TypeAdapter(list[GivenItem])


def read_items(stored: Sequence[dict[str, Any]]) -> list[Item]:
    """Items as they were kept, or as an output has them."""
    return [item for item in _ITEMS.validate_python(stored) if isinstance(item, Item)]


def resolved(
    given: Sequence[GivenItem], found: Mapping[str, dict[str, Any]], field: str = "input"
) -> list[Item]:
    """An input in which each reference has become the item that it names.

    Args:
        found: Stored items by their ids.
        field: What the body calls the input.

    Raises:
        InvalidRequestError: There is none of that id.
    """
    items: list[Item] = []
    for place, item in enumerate(given):
        if not isinstance(item, ItemReference):
            items.append(item)
        elif item.id in found:
            items += read_items([found[item.id]])
        else:
            raise InvalidRequestError(
                f"{field}[{place}] refers to the item {item.id!a}, which is not stored",
                param=f"{field}[{place}].id",
                hint="send the item itself; what store: false made is not stored",
            )
    return items


def text_of(content: str | Sequence[TextPart | ThoughtPart] | None) -> str:
    """A content's text; several parts are lines."""
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(part.content if isinstance(part, TextPart) else part.text for part in content)


def as_items(given: str | Sequence[Item]) -> Sequence[Item]:
    """An input as items: a text is a message of the user's."""
    return [MessageItem(role="user", content=given)] if isinstance(given, str) else given


def listed_items(
    given: str | Sequence[Item], beside: Sequence[Mapping[str, Any]] = ()
) -> list[dict[str, Any]]:
    """The items of an input in full, each with an id of its own, as they are kept and listed.

    Args:
        beside: Items that have their ids already.
    """
    seen = {item["id"] for item in beside}
    listed = []
    for item in as_items(given):
        fields = _in_full(item)
        if fields["id"] is None or fields["id"] in seen:
            fields["id"] = new_id(_PREFIXES[fields["type"]])
        seen.add(fields["id"])
        listed.append(fields)
    return listed


def encode_items(items: Sequence[Mapping[str, Any]], field: str = "input") -> bytes:
    """JSON of the items of the body's ``field``, as it is stored; lone surrogates are refused."""
    text = json.dumps(items, ensure_ascii=False, separators=(",", ":"))
    check_unicode(field, [text])
    return text.encode()


_PREFIXES = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "reasoning": "rs",
    "compaction": "cmp",
}


def _in_full(item: Item) -> dict[str, Any]:
    if isinstance(item, CompactionItem):
        return item.model_dump(include={"id", "type", "encrypted_content"})
    fields: dict[str, Any] = {"id": item.id, "status": item.status or "completed"}
    match item:
        case MessageItem():
            content = _parts(item.content, answers=item.role == "assistant")
            return fields | {"type": "message", "role": item.role, "content": content}
        case ReasoningItem():
            dumped = item.model_dump(include={"type", "summary", "content"})
            return fields | dumped | {"summary": dumped["summary"] or []}
        case FunctionCallItem():
            of_namespace = {} if item.namespace is None else {"namespace": item.namespace}
            call = item.model_dump(include={"type", "call_id", "name", "arguments"})
            return fields | call | of_namespace
        case FunctionCallOutputItem():
            output: Any = item.output
            if not isinstance(output, str):
                output = _parts(output, answers=False)
            return fields | {"type": item.type, "call_id": item.call_id, "output": output}


def _parts(content: str | Sequence[TextPart], *, answers: bool) -> list[dict[str, Any]]:
    kind = "output_text" if answers else "input_text"
    more: dict[str, Any] = {"annotations": []} if answers else {}
    if isinstance(content, str):
        return [{"type": kind, "text": content, **more}]
    return [
        {"type": "refusal", "refusal": part.content}
        if part.type == "refusal"
        else {"type": kind, "text": part.content, **more}
        for part in content
    ]
