"""Custom tools: their input is one text, not an object; the model sees functions of one argument.

Source: OpenAI, "Function calling", custom tools (2025).
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from twostroke.core.structured_outputs import MAX_REGEX_CHARS
from twostroke.server.http.validation_errors import explained
from twostroke.server.openai.field_limits import TOOL_NAME_PATTERN, OpenAIFields
from twostroke.text.answer_parsing.parts import AnswerPart, CallArguments, CallStarted

INPUT = "input"
_CLOSING_ANCHOR = re.compile(r"(?<!\\)((?:\\\\)*)\$\Z")  # not an escaped dollar
_OPENING = re.compile(r'\s*\{\s*"input"\s*:\s*"')
# Characters and whole escapes, of which those of two surrogates stay together.
_WHOLE = re.compile(
    r'(?:[^"\\]|\\[^u]|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}'
    r"|\\u(?![dD][89abAB])[0-9a-fA-F]{4})*",
    re.DOTALL,
)


class GrammarFields(OpenAIFields):
    syntax: Literal["lark", "regex"]
    definition: str = Field(min_length=1, max_length=MAX_REGEX_CHARS)


class FormatFields(OpenAIFields):
    """What the input may be: any text, or one that matches an expression."""

    type: Literal["text", "grammar"]
    grammar: GrammarFields | None = None

    @model_validator(mode="after")
    def _can_be_kept(self) -> Self:
        if (self.type == "grammar") is (self.grammar is None):
            raise explained("grammar belongs to the type grammar, and only there")
        if self.grammar is not None and self.grammar.syntax == "lark":
            raise explained(
                "a Lark grammar cannot be kept within the JSON of a call",
                "write it as a regex, or send the type text",
            )
        return self


class CustomFields(OpenAIFields):
    ignores_unknown: ClassVar[bool] = True

    name: str = Field(pattern=TOOL_NAME_PATTERN)
    description: str | None = None
    format: FormatFields | None = Field(None, description="Any text by default.")

    def as_function(self) -> dict[str, Any]:
        """The function that the model is shown, with the input as its only argument."""
        schema: dict[str, Any] = {"type": "string"}
        description = self.description or ""
        if self.format is not None and self.format.grammar is not None:
            regex = self.format.grammar.definition
            inner = _CLOSING_ANCHOR.sub(r"\1", regex.removeprefix("^"))
            schema["pattern"] = f"^(?:{inner})$"
            description += f"\nThe input matches the regular expression {regex}"
        return {
            "name": self.name,
            "description": description.strip() or None,
            "parameters": {
                "type": "object",
                "properties": {INPUT: schema},
                "required": [INPUT],
                "additionalProperties": False,
            },
            "strict": True,
        }


class CalledCustomFields(OpenAIFields):
    """A former call of a custom tool."""

    ignores_unknown: ClassVar[bool] = True

    name: str
    input: str

    def as_function(self) -> dict[str, str]:
        """The call in the form that chat templates take."""
        return {"name": self.name, "arguments": json.dumps({INPUT: self.input})}


class CustomStarted(NamedTuple):
    """A call of a custom tool begins; ``call`` is its number among all calls."""

    call: int
    name: str


class CustomInput(NamedTuple):
    """More of its input."""

    call: int
    text: str


ChatPart = AnswerPart | CustomStarted | CustomInput


class CustomCalls:
    """Turns the calls of custom tools in the parts of one answer into what they are.

    Args:
        names: Names of the custom tools.
    """

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._inputs: dict[int, _JsonInput] = {}

    def convert(self, parts: Sequence[AnswerPart]) -> list[ChatPart]:
        """Give calls of custom tools their own parts, with input as plain text once certain."""
        converted: list[ChatPart] = []
        for part in parts:
            if isinstance(part, CallStarted) and part.name in self._names:
                self._inputs[part.call] = _JsonInput()
                converted.append(CustomStarted(*part))
            elif isinstance(part, CallArguments) and part.call in self._inputs:
                if text := self._inputs[part.call].feed(part.text):
                    converted.append(CustomInput(part.call, text))
            else:
                converted.append(part)
        return converted


class _JsonInput:
    """The text in ``{"input": "..."}`` as it comes; calls are held to this form."""

    def __init__(self) -> None:
        self._rest = ""
        self._opened = False

    def feed(self, text: str) -> str:
        self._rest += text
        if not self._opened:
            opening = _OPENING.match(self._rest)
            if opening is None:
                return ""
            self._opened, self._rest = True, self._rest[opening.end() :]
        whole = _WHOLE.match(self._rest)
        assert whole is not None  # it may be empty
        self._rest = self._rest[whole.end() :]
        return str(json.loads(f'"{whole[0]}"', strict=False))
