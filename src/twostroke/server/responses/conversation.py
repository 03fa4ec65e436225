"""From items to the messages of a chat: what belongs to one turn of the model is one message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from twostroke.core.errors import InvalidRequestError
from twostroke.server.openai.field_limits import MAX_MESSAGES
from twostroke.server.responses.items import (
    FunctionCallItem,
    FunctionCallOutputItem,
    Item,
    MessageItem,
    ReasoningItem,
    text_of,
)

SYSTEM_ROLES = ("system", "developer")


def chat_messages(instructions: str | None, items: Sequence[Item]) -> list[dict[str, Any]]:
    """The messages of a conversation, as the chat API takes them.

    A thought, the text after it and the calls after that are one assistant's message, as templates
    want it. Instructions and a system message right behind them are one as well: many templates
    take no second one. A call that was cut off is left out, since its arguments are no JSON.

    Raises:
        InvalidRequestError: There are none, or too many.
    """
    turns = _Turns()
    if instructions is not None:
        turns.messages.append({"role": "system", "content": instructions})
    for place, item in enumerate(items):
        match item:
            case MessageItem(role="assistant"):
                turns.say(text_of(item.content))
            case MessageItem() if place == 0 and instructions and item.role in SYSTEM_ROLES:
                turns.messages[0]["content"] = f"{instructions}\n\n{text_of(item.content)}"
            case MessageItem():
                turns.add({"role": item.role, "content": text_of(item.content)})
            case ReasoningItem():
                turns.think(text_of(item.content or item.summary))
            case FunctionCallItem() if item.status != "incomplete":
                turns.call(item)
            case FunctionCallOutputItem():
                turns.add(
                    {
                        "role": "tool",
                        "tool_call_id": item.call_id,
                        "content": text_of(item.output),
                    }
                )
    messages = turns.whole()
    if not messages:
        raise InvalidRequestError(
            "input is missing", param="input", hint="send a text, or a list of items"
        )
    if len(messages) > MAX_MESSAGES:
        raise InvalidRequestError(
            f"the conversation has {len(messages)} messages, at most {MAX_MESSAGES} are taken",
            param="input",
            hint="begin a new one, without previous_response_id",
        )
    return messages


class _Turns:
    """Messages, the last of which may be an assistant's that is not complete."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self._turn: dict[str, Any] | None = None

    def add(self, message: dict[str, Any]) -> None:
        self._turn = None
        self.messages.append(message)

    def think(self, text: str) -> None:
        # Joined at the end: a turn may hold thousands of thoughts.
        turn = self._turn_without("content", "tool_calls")
        turn.setdefault("reasoning_content", []).append(text)

    def say(self, text: str) -> None:
        self._turn_without("content", "tool_calls")["content"] = text

    def call(self, item: FunctionCallItem) -> None:
        function = {"name": item.name, "arguments": item.arguments}
        call = {"id": item.call_id, "type": "function", "function": function}
        self._turn_without().setdefault("tool_calls", []).append(call)

    def whole(self) -> list[dict[str, Any]]:
        """All messages, complete now; several thoughts of one are lines."""
        for message in self.messages:
            if "reasoning_content" in message:
                message["reasoning_content"] = "\n".join(message["reasoning_content"])
        return self.messages

    def _turn_without(self, *fields: str) -> dict[str, Any]:
        """The assistant's open message; a new one where it has one of ``fields`` already."""
        if self._turn is None or any(field in self._turn for field in fields):
            self._turn = {"role": "assistant"}
            self.messages.append(self._turn)
        return self._turn
