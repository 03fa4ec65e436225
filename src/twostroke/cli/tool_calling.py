"""Tool calls in the answers of a session: found in the text, or in a server's deltas."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from twostroke.core.errors import InvalidRequestError
from twostroke.text.answer_parsing.answer_parts import AnswerParts
from twostroke.text.answer_parsing.parts import AnswerPart, CallArguments, CallStarted, Content
from twostroke.text.tokenizer import Tokenizer
from twostroke.tools.registry import family_of_template


class AskedCall(NamedTuple):
    """A call that an answer asks for; ``arguments`` is JSON text, as the model wrote it."""

    name: str
    arguments: str
    id: str


def call_messages(
    text: str, calls: Sequence[AskedCall], results: Sequence[str]
) -> list[dict[str, Any]]:
    """An answer with calls, and their results, as messages of OpenAI's API."""
    made = [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for call in calls
    ]
    return [
        {"role": "assistant", "content": text, "tool_calls": made},
        *(
            {"role": "tool", "tool_call_id": call.id, "content": result}
            for call, result in zip(calls, results, strict=True)
        ),
    ]


class CallsInText:
    """Separates the calls in an answer's text from what is for the user.

    Args:
        tools: Tools in the form of OpenAI's API.

    Attributes:
        needs_special_tokens: Whether the form consists of special tokens, which the text must keep.

    Raises:
        InvalidRequestError: The model's chat template has no form for calls.
    """

    def __init__(self, tokenizer: Tokenizer, tools: Sequence[Mapping[str, Any]]) -> None:
        family = family_of_template("".join(tokenizer.chat_templates.values()))
        if family is None:
            raise InvalidRequestError(
                "this model's chat template has no form for tool calls",
                hint="leave --tools out, or choose another model",
            )
        functions = [tool["function"] for tool in tools]
        schemas = {function["name"]: function.get("parameters") or {} for function in functions}
        self.needs_special_tokens = bool(tokenizer.special_texts & set(family.special_texts))
        self._parts = AnswerParts(family.reader(schemas))
        self._calls = CallsInDeltas()

    def feed(self, text: str) -> str:
        """The text for the user in what the answer has gained."""
        return self._take(self._parts.add(text, ended=False))

    def finish(self) -> tuple[str, list[AskedCall]]:
        """The rest of the text, and all calls."""
        return self._take(self._parts.add("", ended=True)), self._calls.finish()

    def _take(self, parts: Sequence[AnswerPart]) -> str:
        text = ""
        for part in parts:
            match part:
                case Content(more):
                    text += more
                case CallStarted(call, name):
                    self._calls.add(call, name=name)
                case CallArguments(call, more):
                    self._calls.add(call, arguments=more)
        return text


class CallsInDeltas:
    """Puts calls together from their pieces."""

    def __init__(self) -> None:
        self._calls: dict[int, AskedCall] = {}

    def add(self, index: int, *, name: str = "", arguments: str = "", id: str = "") -> None:
        """More of call ``index``."""
        former = self._calls.get(index, AskedCall("", "", ""))
        self._calls[index] = AskedCall(
            former.name + name, former.arguments + arguments, former.id or id
        )

    def finish(self) -> list[AskedCall]:
        """All calls, in order; those without an id get one."""
        return [
            call._replace(id=call.id or f"call_{uuid.uuid4().hex[:24]}")
            for _, call in sorted(self._calls.items())
        ]
