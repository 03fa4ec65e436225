"""The messages of Ollama's chats, and the same as messages of a chat request."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import MaxLen
from pydantic import Field

from twostroke.core.errors import InvalidRequestError
from twostroke.server.http.body_fields import FirstMistake
from twostroke.server.ollama.option_fields import OllamaFields
from twostroke.server.openai.chat_messages import MAX_CALLS
from twostroke.server.openai.field_limits import MAX_MESSAGES
from twostroke.text.json_values import json_pieces

MAX_ID_LENGTH = 256


class CalledFunctionFields(OllamaFields):
    ignores_unknown: ClassVar[bool] = True

    name: str
    arguments: dict[str, Any] | None = Field(None, description="What it was called with.")


class CallFields(OllamaFields):
    """A call that an assistant made."""

    ignores_unknown: ClassVar[bool] = True

    id: str | None = Field(None, max_length=MAX_ID_LENGTH)
    function: CalledFunctionFields


class OllamaMessageFields(OllamaFields):
    """One turn, or what a tool answered."""

    ignores_unknown: ClassVar[bool] = True
    refused: ClassVar[Mapping[str, tuple[Any, ...]]] = {"images": ([],)}

    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = Field(None, description="Empty by default.")
    thinking: str | None = Field(
        None, description="An assistant's thought, for templates that write it."
    )
    tool_calls: Annotated[list[CallFields], MaxLen(MAX_CALLS), FirstMistake()] | None = Field(
        None, description="What an assistant called."
    )
    tool_name: str | None = Field(None, description="Which tool a tool's message is from.")
    tool_call_id: str | None = Field(
        None,
        max_length=MAX_ID_LENGTH,
        description="Which call it answers; by default the first of that tool without an answer.",
    )


Messages = Annotated[list[OllamaMessageFields], MaxLen(MAX_MESSAGES), FirstMistake()]


def chat_messages(messages: Sequence[OllamaMessageFields]) -> list[dict[str, Any]]:
    """Messages of a chat request, in which each call has an id and each result its call's.

    Raises:
        InvalidRequestError: The arguments of a call are nested too deeply.
    """
    open_calls = _OpenCalls()
    num_calls = 0
    turns = []
    for place, message in enumerate(messages):
        turn: dict[str, Any] = {"role": message.role, "content": message.content or ""}
        if message.role == "assistant":
            turn["reasoning_content"] = message.thinking or None
            calls = []
            for call in message.tool_calls or ():
                num_calls += 1
                arguments = _json(call.function.arguments, f"messages[{place}].tool_calls")
                function = {"name": call.function.name, "arguments": arguments}
                # Nine letters and digits: Mistral's templates take no others.
                call_id = call.id or f"call{num_calls:05d}"
                calls.append({"id": call_id, "type": "function", "function": function})
                open_calls.add(calls[-1], has_own_id=bool(call.id))
            turn["tool_calls"] = calls or None
        elif message.role == "tool":
            answered = open_calls.take(message.tool_call_id, message.tool_name)
            if answered is not None:
                turn["tool_call_id"] = answered["id"]
                turn["name"] = answered["function"]["name"]
            turn["tool_call_id"] = message.tool_call_id or turn.get("tool_call_id")
            turn["name"] = message.tool_name or turn.get("name")
        turns.append({key: value for key, value in turn.items() if value is not None})
    return turns


class _OpenCalls:
    """Calls that have no result so far. Each is looked at a bounded number of times."""

    def __init__(self) -> None:
        self._by_id: dict[str, dict[str, Any]] = {}
        self._by_name: defaultdict[str, deque[str]] = defaultdict(deque)  # ids; "": of any name
        self._unnamed: set[str] = set()  # ids that the client did not give

    def add(self, call: dict[str, Any], *, has_own_id: bool) -> None:
        self._by_id[call["id"]] = call
        for name in ("", call["function"]["name"]):
            self._by_name[name].append(call["id"])
        if not has_own_id:
            self._unnamed.add(call["id"])

    def take(self, call_id: str | None, tool: str | None) -> dict[str, Any] | None:
        """The call that a result answers: by its id, else the first of that tool."""
        if call_id is not None and (call := self._by_id.pop(call_id, None)) is not None:
            return call
        ids = self._by_name[tool or ""]
        while ids:
            if (call := self._by_id.pop(first := ids.popleft(), None)) is not None:
                # LiteLLM sends the ids of calls with their results alone.
                if call_id is not None and first in self._unnamed:
                    call["id"] = call_id
                return call
        return None


def _json(arguments: Mapping[str, Any] | None, param: str) -> str:
    try:
        return "".join(json_pieces(dict(arguments or {})))
    except RecursionError as error:
        raise InvalidRequestError(f"{param} is nested too deeply", param=param) from error
