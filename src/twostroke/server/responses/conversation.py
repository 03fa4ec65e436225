"""From items to the messages of a chat: what belongs to one turn of the model is one message."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from twostroke.core.errors import InvalidRequestError
from twostroke.server.openai.field_limits import MAX_MESSAGES
from twostroke.server.responses.items import (
    CompactionItem,
    FunctionCallItem,
    FunctionCallOutputItem,
    Item,
    MessageItem,
    ReasoningItem,
    text_of,
)
from twostroke.server.responses.request_tools import joined_name

SYSTEM_ROLES = ("system", "developer")
# What chat's messages call a field of an item.
_FIELDS = {
    "content": "content",
    "reasoning_content": "content",
    "tool_call_id": "call_id",
    "name": "name",
    "arguments": "arguments",
    "id": "call_id",
}
_CALL = re.compile(r"messages\[(\d+)\]\.tool_calls\[(\d+)\]")
_MESSAGE = re.compile(r"messages\[(\d+)\]\.(\w+)")


class Conversation(NamedTuple):
    """A conversation as the chat API takes it.

    Attributes:
        messages: Its messages.
        places: For each message the item that each of its fields is of; calls are numbered. -1: the
            instructions.
        num_before: Items that the request did not bring itself.
        left_out: Names of its own items that are none of the messages.
    """

    messages: list[dict[str, Any]]
    places: list[dict[str | int, int]]
    num_before: int
    left_out: Sequence[str] = ()

    def place_of(self, param: str) -> str:
        """Where the request has what chat calls ``messages[2].tool_calls[0]...``, if it has it."""
        if match := _CALL.match(param):
            message, field = int(match[1]), int(match[2])
            place = self.places[message].get(field)
        elif match := _MESSAGE.match(param):
            place = self.places[int(match[1])].get(match[2])
        else:
            return "input"
        if place == -1:
            return "instructions"
        if place is None or place < self.num_before:
            return "input"
        name = _FIELDS.get(param.rpartition(".")[2])
        return f"input[{place - self.num_before}]" + (f".{name}" if name else "")


def conversation_of(
    instructions: str | None, items: Sequence[Item], num_before: int = 0
) -> Conversation:
    """The messages of a conversation, as the chat API takes them.

    A thought, the text after it and the calls after that are one assistant's message, as templates
    want it. Instructions and a system message right after them are one as well: many templates
    take no second one. A call that was cut off is left out, since its arguments are no JSON, and
    so is what a tool answered to it.

    Args:
        num_before: Items at the beginning that the request did not bring itself.

    Raises:
        InvalidRequestError: There are none, or too many.
    """
    turns = _Turns()
    cut_places = _places_of_cut_calls(items)
    if instructions is not None:
        turns.add({"role": "system", "content": instructions}, -1)
    for place, item in enumerate(items):
        if place in cut_places:
            continue
        match item:
            case MessageItem(role="assistant"):
                turns.say(text_of(item.content), place)
            case MessageItem() if place == 0 and instructions and item.role in SYSTEM_ROLES:
                turns.messages[0]["content"] = f"{instructions}\n\n{text_of(item.content)}"
            case MessageItem():
                turns.add({"role": item.role, "content": text_of(item.content)}, place)
            case CompactionItem():
                turns.add({"role": "user", "content": item.text}, place)
            case ReasoningItem():
                turns.think(text_of(item.content or item.summary), place)
            case FunctionCallItem():
                turns.call(item, place)
            case FunctionCallOutputItem():
                content = text_of(item.output)
                turns.add({"role": "tool", "tool_call_id": item.call_id, "content": content}, place)
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
    left_out = [f"input[{place - num_before}]" for place in cut_places if place >= num_before]
    return Conversation(messages, turns.places, num_before, left_out)


def _places_of_cut_calls(items: Sequence[Item]) -> dict[int, None]:
    """Places of calls that were cut off, and of what tools answered to those, in order."""
    places: dict[int, None] = {}
    cut_ids: set[str] = set()
    for place, item in enumerate(items):
        if isinstance(item, FunctionCallItem):
            if item.status == "incomplete":
                cut_ids.add(item.call_id)
                places[place] = None
            else:
                cut_ids.discard(item.call_id)
        elif isinstance(item, FunctionCallOutputItem) and item.call_id in cut_ids:
            places[place] = None
    return places


class _Turns:
    """Messages, the last of which may be an assistant's that is not complete."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.places: list[dict[str | int, int]] = []
        self._turn: dict[str, Any] | None = None

    def add(self, message: dict[str, Any], place: int) -> None:
        self._turn = None
        self.messages.append(message)
        self.places.append(dict.fromkeys(message, place))

    def think(self, text: str, place: int) -> None:
        # Joined at the end: a turn may hold thousands of thoughts.
        turn = self._turn_without("content", "tool_calls")
        turn.setdefault("reasoning_content", []).append(text)
        self.places[-1]["reasoning_content"] = place

    def say(self, text: str, place: int) -> None:
        self._turn_without("content", "tool_calls")["content"] = text
        self.places[-1]["content"] = place

    def call(self, item: FunctionCallItem, place: int) -> None:
        name = joined_name(item.namespace, item.name)
        function = {"name": name, "arguments": item.arguments}
        call = {"id": item.call_id, "type": "function", "function": function}
        calls = self._turn_without().setdefault("tool_calls", [])
        self.places[-1][len(calls)] = place
        calls.append(call)

    def whole(self) -> list[dict[str, Any]]:
        """All messages, complete now; several thoughts of one are lines."""
        for message in self.messages:
            if "reasoning_content" in message:
                message["reasoning_content"] = "\n".join(message["reasoning_content"])
        return self.messages

    def _turn_without(self, *fields: str) -> dict[str, Any]:
        """The assistant's open message; a new one where it has one of ``fields`` already."""
        if self._turn is None or any(field in self._turn for field in fields):
            turn = {"role": "assistant"}
            self.add(turn, -1)
            self._turn = turn
        return self._turn
