"""The messages of a chat, as requests hold them and as chat templates take them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import MaxLen, MinLen
from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError

from twostroke.server.http.body_fields import FirstMistake, check_unicode
from twostroke.server.openai.field_limits import MAX_MESSAGE_PARTS, MAX_MESSAGES, OpenAIFields


class ContentPart(OpenAIFields):
    """One piece of a message; only text is supported."""

    type: Literal["text"]
    text: str


class ChatMessage(OpenAIFields):
    __doc__ = (
        "One turn. What clients echo back of an answer (``refusal``, ``tool_calls`` ...) may be"
        " there, but empty."
    )

    refused: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "name": (),
        "refusal": (),
        "tool_calls": ([],),
        "tool_call_id": (),
        "function_call": (),
        "audio": (),
        "annotations": ([],),
        "reasoning": (),
        "reasoning_content": (),
    }

    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[ContentPart], FirstMistake()]


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
    return sum(
        len(content)
        if isinstance(content := message.content, str)
        else sum(len(part.text) for part in content)
        for message in messages
    )


def template_messages(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """Messages as templates take them; lone surrogates are refused."""
    for i, message in enumerate(messages):
        content = message.content
        texts = [content] if isinstance(content, str) else [part.text for part in content]
        check_unicode(f"messages[{i}].content", texts)
    return [message.model_dump(exclude_none=True) for message in messages]


def turn_options(
    add_generation_prompt: bool | None, continue_final_message: bool | None
) -> dict[str, Any]:
    """Arguments of ``ChatTemplate.render`` that say how the prompt ends.

    The assistant's turn is opened unless the last message is to go on.
    """
    continued = bool(continue_final_message)
    opened = not continued if add_generation_prompt is None else add_generation_prompt
    return {"add_generation_prompt": opened, "continue_final_message": continued}
