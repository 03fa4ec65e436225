"""The messages of a chat, as requests hold them and as chat templates take them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from annotated_types import MaxLen, MinLen
from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from twostroke.server.generation.encoding import check_length
from twostroke.server.http.body_fields import FirstMistake, check_unicode
from twostroke.server.http.validation_errors import explained
from twostroke.server.openai.field_limits import MAX_MESSAGE_PARTS, MAX_MESSAGES, OpenAIFields
from twostroke.server.openai.tools.custom_tools import CalledCustomFields
from twostroke.server.state.served_model import ServedModel
from twostroke.text.template_roles import ROLE_PATTERN

# OpenAI's, which is also what keeps a template's role markers out of names.
MAX_CALLS = 128
NAME_PATTERN = r"^[^\s<|\\/>]+$"


class ContentPart(OpenAIFields):
    """One piece of a message: a text, or the refusal that an assistant gave instead."""

    ignores_unknown: ClassVar[bool] = True

    type: Literal["text", "refusal"]
    text: str | None = None
    refusal: str | None = None

    @model_validator(mode="after")
    def _has_text(self) -> Self:
        _require(self, self.type)
        return self

    @property
    def content(self) -> str:
        return (self.text if self.type == "text" else self.refusal) or ""


class CallOfFunction(OpenAIFields):
    ignores_unknown: ClassVar[bool] = True

    name: str
    arguments: str = Field(description="A JSON object, as text.")


class CallOfTool(OpenAIFields):
    """A call that an assistant made."""

    ignores_unknown: ClassVar[bool] = True

    id: str | None = None
    type: Literal["function", "custom"] | None = None
    function: CallOfFunction = Field(CallOfFunction.model_construct(name="", arguments=""))
    custom: CalledCustomFields | None = None

    @model_validator(mode="after")
    def _has_its_kind(self) -> Self:
        _require(self, self.type or "function")
        if self.type == "custom" and self.custom is not None:
            self.function = CallOfFunction(**self.custom.as_function())
            self.custom = None
        elif "function" not in self.model_fields_set:
            context = {"field": "function", "how": "missing"}
            raise PydanticCustomError("missing_field", "missing", context)
        return self


class ChatMessage(OpenAIFields):
    __doc__ = (
        "One turn. Keys that are unknown here are ignored, as in what clients send back of an"
        " answer (``annotations``, ``audio`` ...)."
    )

    ignores_unknown: ClassVar[bool] = True
    nested: ClassVar[tuple[str, ...]] = ("content",)
    refused: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "function_call": (),
        "audio": (),
    }
    instead: ClassVar[Mapping[str, str]] = {
        "function_call": "send it in tool_calls, and its result in a message of the role tool",
    }

    role: str = Field(
        pattern=ROLE_PATTERN,
        description=(
            "system, developer, user, assistant, tool, or another that the chat template knows."
        ),
    )
    content: str | Annotated[list[ContentPart], FirstMistake()] | None = Field(
        None, description="Only an assistant's may be null."
    )
    name: str | None = Field(
        None,
        max_length=64,
        pattern=NAME_PATTERN,
        description="The speaker's name, for templates that write it.",
    )
    refusal: str | None = Field(None, description="What an assistant said where content is null.")
    tool_calls: Annotated[list[CallOfTool], MaxLen(MAX_CALLS), FirstMistake()] | None = Field(
        None, description="What an assistant called."
    )
    tool_call_id: str | None = Field(
        None, max_length=256, description="Which call a tool's message answers."
    )
    reasoning_content: str | None = Field(
        None, description="An assistant's thought, for templates that write it."
    )
    reasoning: str | None = Field(None, description="Newer name of reasoning_content.")

    @model_validator(mode="after")
    def _has_content(self) -> Self:
        if self.role == "function":
            hint = "send it in a message of the role tool, with the tool_call_id of its call"
            raise explained("a function's result is that of a tool", hint)
        if self.role != "assistant":
            _require(self, "content")
        return self

    @property
    def thought(self) -> str | None:
        """What an assistant thought, under either name."""
        return self.reasoning if self.reasoning_content is None else self.reasoning_content

    def texts(self) -> list[str]:
        """The pieces of the content."""
        if isinstance(self.content, list):
            return [part.content for part in self.content]
        return [self.refusal or "" if self.content is None else self.content]

    def num_chars(self) -> int:
        """Characters that the message can bring into the prompt."""
        calls = self.tool_calls or []
        called = sum(len(call.function.name) + len(call.function.arguments) for call in calls)
        return sum(map(len, self.texts())) + called + len(self.thought or "")


def _require(model: OpenAIFields, field: str) -> None:
    if getattr(model, field) is None:
        how = "null" if field in model.model_fields_set else "missing"
        raise PydanticCustomError("missing_field", "missing", {"field": field, "how": how})


def _check_num_parts(messages: Any) -> Any:
    """Bound the parts over all messages: an empty one is 30 bytes, and microseconds to check."""
    contents = (
        [m.get("content") for m in messages if isinstance(m, dict)]
        if isinstance(messages, list)
        else []
    )
    if sum(len(content) for content in contents if isinstance(content, list)) > MAX_MESSAGE_PARTS:
        raise PydanticCustomError(
            "too_long", "too long", {"max_length": MAX_MESSAGE_PARTS, "of": "parts of content"}
        )
    return messages


Messages = Annotated[
    list[ChatMessage],
    MinLen(1),
    MaxLen(MAX_MESSAGES),
    FirstMistake(),
    BeforeValidator(_check_num_parts),
]


def num_chars(messages: Sequence[ChatMessage]) -> int:
    """Characters of all contents together."""
    return sum(message.num_chars() for message in messages)


def bounded_messages(model: ServedModel, messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """``template_messages``; too long ones are refused before the work.

    What templates do not show counts, too, such as the thoughts of a user.
    """
    check_length(model, num_chars(messages), "messages")
    return template_messages(messages)


def template_messages(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """Messages as templates take them; lone surrogates are refused."""
    chat = []
    for i, message in enumerate(messages):
        texts = message.texts()
        check_unicode(f"messages[{i}].content", texts)
        parts = [{"type": "text", "text": text} for text in texts]
        turn = {
            "role": message.role,
            "content": parts if isinstance(message.content, list) else texts[0],
        }
        chat.append(turn | _other_fields(message, f"messages[{i}]"))
    return chat


def _other_fields(message: ChatMessage, path: str) -> dict[str, Any]:
    """What templates read of a message besides role and content, where it is there."""
    values: dict[str, Any] = {"name": message.name, "tool_call_id": message.tool_call_id}
    if message.role == "assistant":
        values["reasoning_content"] = message.thought
        calls = [call.model_dump(exclude_none=True) for call in message.tool_calls or ()]
        for call in calls:
            call["type"] = "function"
        values["tool_calls"] = calls or None
    for name, value in values.items():
        for text in _strings(value):
            check_unicode(f"{path}.{name}", [text])
    return {name: value for name, value in values.items() if value is not None}


def _strings(value: object) -> list[str]:
    """All texts in a value made of lists and dictionaries."""
    if isinstance(value, str):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for item in items for text in _strings(item)]


def turn_options(
    add_generation_prompt: bool | None, continue_final_message: bool | None
) -> dict[str, Any]:
    """Arguments of ``ChatTemplate.render`` that say how the prompt ends.

    The assistant's turn is opened unless the last message is to go on.
    """
    continued = bool(continue_final_message)
    opened = not continued if add_generation_prompt is None else add_generation_prompt
    return {"add_generation_prompt": opened, "continue_final_message": continued}
