"""What a tool family is: how its calls are recognised, read, and demanded of a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from twostroke.text.answer_parsing.source import AnswerSource, Reader, Reading
from twostroke.tools.rules import Rules

# A name to the JSON schema of its parameters.
ToolSchemas = Mapping[str, Mapping[str, Any]]
DEFINITIONS = frozenset({"$defs", "definitions"})
# What a form that writes arguments one by one, by name, keeps of their schema.
_KEPT_BY_NAME = DEFINITIONS | {"type", "properties", "required", "additionalProperties"}


class Frame(NamedTuple):
    """What stands around the calls of an answer, and between two of them."""

    opening: str = ""
    separator: str = ""
    closing: str = ""


class WholeAnswer(NamedTuple):
    """How calls are told from text where nothing opens them: they are the whole answer.

    Attributes:
        beginning: The character that text may not begin with, as an expression has it in a set.
        marker: May stand before the calls.
        end: May stand after them, where the tokenizer has it as a special token.
        has_text: Whether text may stand before the marker.
    """

    beginning: str
    marker: str
    end: str = ""
    has_text: bool = False


@dataclass(frozen=True, slots=True)
class CallRule:
    """A rule that allows the calls of one function; ``ToolFamily.call`` writes what it says.

    Attributes:
        rules: Takes further rules, whose names begin with this one's.
        name: The rule's name.
        function: The function's name.
        schema: JSON schema of the arguments.
        path: Where the schema stands in the request.
        opened_by: What of the call has been read: the family's trigger, or nothing.
        is_choice: The answer may be another JSON object. A call that is an object then has the
            tokens of JSON, which do not compete with those of the other.
        inlined: A schema and its path, to the JSON that the grammar's library takes.
        keep_only: Refuses, of a strict function, a schema with other keywords than these; its path.
    """

    rules: Rules
    name: str
    function: str
    schema: Mapping[str, Any]
    path: str
    opened_by: str
    is_choice: bool
    inlined: Callable[[Any, str], str]
    keep_only: Callable[[Mapping[str, Any], frozenset[str], str], None]

    def json(self) -> str:
        """An expression for the arguments as JSON."""
        return self.json_of(self.schema, self.path)

    def json_of(self, schema: Any, path: str) -> str:
        """An expression for a value of a schema, as JSON."""
        return f"%json {self.inlined(schema, path)}"

    def between(self, before: str, arguments: str, after: str) -> str:
        """An expression for the arguments with texts around them, without what has been read."""
        opening = self.rules.literal(before.removeprefix(self.opened_by))
        return f"{opening} {arguments} {self.rules.literal(after)}"

    def properties(self) -> list[tuple[str, Any, bool]]:
        """Arguments that are written one by one: names, schemas, whether they must be there.

        Each schema has the definitions that it uses.

        Raises:
            InvalidRequestError: The function is strict, and its schema bounds them together.
        """
        self.keep_only(self.schema, _KEPT_BY_NAME, self.path)
        shared = {key: self.schema[key] for key in ("$defs", "definitions") if key in self.schema}
        required = set(self.schema.get("required") or ())
        return [
            (name, {**part, **shared} if isinstance(part, Mapping) else part, name in required)
            for name, part in (self.schema.get("properties") or {}).items()
        ]


def _no_frame(rules: Rules) -> Frame:
    return Frame()


@dataclass(frozen=True, slots=True)
class ToolFamily:
    """A form in which models write tool calls. What ``call`` allows, ``read`` reads.

    An answer has calls after a ``trigger``, or is calls as a ``whole``, or is made of
    ``messages``: each family has one of the three.

    Attributes:
        name: The parser's name in vLLM.
        marks: Texts of which a chat template of the family has one, and hardly any other template.
        special_texts: What calls are made of. Where a tokenizer has these as special tokens, the
            text of an answer must keep them.
        read: Yields the parts of an answer; it is given the request's tools.
        call: The rule of one function's calls.
        frame: What stands around calls, for a tokenizer.
        aliases: Further names that vLLM has for this form.
        trigger: Opens each call, or all, and occurs nowhere else.
        messages: The rule of a whole answer, from an expression for what it may be instead of
            calls, if anything; ``call`` is the rule of all calls.
        recognised_last: Models that are tuned to another form may keep the marks.
    """

    name: str
    marks: tuple[str, ...]
    special_texts: tuple[str, ...]
    read: Callable[[AnswerSource, ToolSchemas], Reading[None]]
    call: Callable[[CallRule], str]
    frame: Callable[[Rules], Frame] = _no_frame
    aliases: tuple[str, ...] = ()
    trigger: str = ""
    whole: WholeAnswer | None = None
    messages: Callable[[Rules, str | None], str] | None = None
    recognised_last: bool = False

    @property
    def has_thoughts(self) -> bool:
        """Whether thoughts are part of the form: messages, as calls and the answer itself are."""
        return self.messages is not None

    def reader(self, tools: ToolSchemas) -> Reader:
        """Reads the answers to a request with these tools."""
        return lambda source: self.read(source, tools)
