"""The parts of an answer as OpenAI's objects: content, reasoning and tool calls."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from msgspec import UNSET, Struct, UnsetType

from twostroke.text.answer_parsing.parts import (
    AnswerPart,
    CallArguments,
    CallStarted,
    Content,
    Reasoning,
)


class FunctionDelta(Struct):
    """A piece of a call's arguments; the first one has the name."""

    arguments: str
    name: str | UnsetType = UNSET


class ToolCallDelta(Struct, kw_only=True):
    index: int
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET
    function: FunctionDelta


class ChatDelta(Struct):
    """What a choice has gained; ``reasoning`` is vLLM's newer name of ``reasoning_content``."""

    role: str | UnsetType = UNSET
    content: str | UnsetType | None = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET


class CalledFunction(Struct):
    name: str
    arguments: str


class ToolCall(Struct):
    id: str
    function: CalledFunction
    type: str = "function"


class AnswerMessage(Struct):
    """A whole answer; ``content`` is null where there are tool calls and no text."""

    content: str | None
    role: str = "assistant"
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


def delta_of(parts: Sequence[AnswerPart], *, include_reasoning: bool) -> ChatDelta | None:
    """One delta for what a step added; ``None`` if it added nothing that is shown."""
    delta = ChatDelta()
    for part in parts:
        match part:
            case Content(text):
                delta.content = (delta.content or "") + text
            case Reasoning(text) if include_reasoning:
                delta.reasoning = delta.reasoning_content = (delta.reasoning or "") + text
            case CallStarted(call, name):
                started = ToolCallDelta(
                    index=call, id=_call_id(), type="function", function=FunctionDelta("", name)
                )
                delta.tool_calls = [*(delta.tool_calls or ()), started]
            case CallArguments(call, text):
                more = ToolCallDelta(index=call, function=FunctionDelta(text))
                calls = delta.tool_calls or []
                if calls and calls[-1].index == call:
                    calls[-1].function.arguments += text
                else:
                    delta.tool_calls = [*calls, more]
    return None if delta == ChatDelta() else delta


def message_of(parts: Sequence[AnswerPart], *, include_reasoning: bool) -> AnswerMessage:
    """The message of a whole answer."""
    texts: dict[type, list[str]] = {Content: [], Reasoning: []}
    names, arguments = list[str](), list[list[str]]()
    for part in parts:
        match part:
            case CallStarted(_, name):
                names.append(name)
                arguments.append([])
            case CallArguments(call, text):
                arguments[call].append(text)
            case Content(text) | Reasoning(text):
                texts[type(part)].append(text)
    content, reasoning = "".join(texts[Content]), "".join(texts[Reasoning])
    calls = [
        ToolCall(_call_id(), CalledFunction(name, "".join(pieces)))
        for name, pieces in zip(names, arguments)
    ]
    message = AnswerMessage(None if calls and not content.strip() else content)
    if reasoning and include_reasoning:
        message.reasoning = message.reasoning_content = reasoning
    if calls:
        message.tool_calls = calls
    return message


def _call_id() -> str:
    return f"call_{uuid.uuid4().hex[:24]}"
