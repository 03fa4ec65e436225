"""The parts of an answer as OpenAI's objects: content, reasoning and tool calls."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from msgspec import UNSET, Struct, UnsetType

from twostroke.server.openai.tools.custom_tools import ChatPart, CustomInput, CustomStarted
from twostroke.text.answer_parsing.parts import (
    CallArguments,
    CallStarted,
    Content,
    Reasoning,
)


class FunctionDelta(Struct):
    """A piece of a call's arguments; the first one has the name."""

    arguments: str
    name: str | UnsetType = UNSET


class CustomDelta(Struct):
    """A piece of a custom tool's input; the first one has the name."""

    input: str
    name: str | UnsetType = UNSET


class ToolCallDelta(Struct, kw_only=True):
    index: int
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET
    function: FunctionDelta | UnsetType = UNSET
    custom: CustomDelta | UnsetType = UNSET


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


class CalledCustom(Struct):
    name: str
    input: str


class ToolCall(Struct):
    id: str
    function: CalledFunction | UnsetType = UNSET
    type: str = "function"
    custom: CalledCustom | UnsetType = UNSET


class AnswerMessage(Struct):
    """A whole answer; ``content`` is null where there are tool calls and no text."""

    content: str | None
    role: str = "assistant"
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


def delta_of(parts: Sequence[ChatPart], *, include_reasoning: bool) -> ChatDelta | None:
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
                delta.tool_calls = [*(delta.tool_calls or ()), more]
            case CustomStarted(call, name):
                custom = CustomDelta("", name)
                started = ToolCallDelta(index=call, id=_call_id(), type="custom", custom=custom)
                delta.tool_calls = [*(delta.tool_calls or ()), started]
            case CustomInput(call, text):
                more = ToolCallDelta(index=call, custom=CustomDelta(text))
                delta.tool_calls = [*(delta.tool_calls or ()), more]
    if delta.tool_calls:
        delta.tool_calls = _joined(delta.tool_calls)
    return None if delta == ChatDelta() else delta


def _joined(deltas: Sequence[ToolCallDelta]) -> list[ToolCallDelta]:
    """Pieces of one call together."""
    joined: list[ToolCallDelta] = []
    for delta in deltas:
        last = joined[-1] if joined else None
        if last is None or last.index != delta.index:
            joined.append(delta)
        elif last.function and delta.function:
            last.function.arguments += delta.function.arguments
        elif last.custom and delta.custom:
            last.custom.input += delta.custom.input
    return joined


def message_of(parts: Sequence[ChatPart], *, include_reasoning: bool) -> AnswerMessage:
    """The message of a whole answer."""
    texts: dict[type, list[str]] = {Content: [], Reasoning: []}
    calls, pieces = list[ToolCall](), list[list[str]]()
    for part in parts:
        match part:
            case CallStarted(_, name):
                calls.append(ToolCall(_call_id(), CalledFunction(name, "")))
                pieces.append([])
            case CustomStarted(_, name):
                calls.append(ToolCall(_call_id(), type="custom", custom=CalledCustom(name, "")))
                pieces.append([])
            case CallArguments(call, text) | CustomInput(call, text):
                pieces[call].append(text)
            case Content(text) | Reasoning(text):
                texts[type(part)].append(text)
    content, reasoning = "".join(texts[Content]), "".join(texts[Reasoning])
    for each, inputs in zip(calls, pieces):
        if each.function:
            each.function.arguments = "".join(inputs)
        elif each.custom:
            each.custom.input = "".join(inputs)
    message = AnswerMessage(None if calls and not content.strip() else content)
    if reasoning and include_reasoning:
        message.reasoning = message.reasoning_content = reasoning
    if calls:
        message.tool_calls = calls
    return message


def _call_id() -> str:
    return f"call_{uuid.uuid4().hex[:24]}"
