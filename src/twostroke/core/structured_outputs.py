"""What a client may ask of the form of an answer: one of a schema, an expression, a grammar."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from twostroke.core.errors import InvalidRequestError

MAX_SCHEMA_CHARS = 512 * 1024
MAX_GRAMMAR_CHARS = 64 * 1024
MAX_REGEX_CHARS = 32 * 1024
MAX_CHOICES_TO_PICK = 10_000
MAX_TOOL_FORM_CHARS = 2 * 2**20
KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag", "tool_calls")
PARAM = "structured_outputs"


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutputsParams:
    """The form that the answer has to have: one of the first seven fields. Names are vLLM's.

    Attributes:
        json: A JSON schema, as an object or as text.
        regex: An expression that the whole answer matches.
        choice: Texts, of which the answer is one.
        grammar: A grammar in Lark's notation, or in GBNF (the notation with ``::=``).
        json_object: Any JSON object.
        structural_tag: Free text with parts in a given form, each after its trigger: an object, or
            its text.
        tool_calls: A request's tools and how they are to be called, as the server writes it
            (``constraints/tool_answers.py``).
        thought: Whether a thought in tags may come before the form, or is open where it begins; or
            thoughts and the answer are messages in channels.
        disable_any_whitespace: JSON on one line: a space after each comma and colon, no other.
        disable_additional_properties: Objects that say nothing of further properties have none.
        whitespace_pattern: Where JSON may have white space, at most what this expression matches.
        scope: Compiled grammars are shared only between equal scopes; a server gives each key its
            own.
    """

    json: str | dict[str, Any] | None = None
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | dict[str, Any] | None = None
    tool_calls: str | None = None
    thought: Literal["", "optional", "opened", "channels"] = ""
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None
    scope: str = ""

    def __post_init__(self) -> None:
        asked = [name for name in KINDS if getattr(self, name) not in (None, False)]
        if len(asked) != 1:
            given = " and ".join(asked) if asked else "none"
            raise _invalid(None, f"needs exactly one of {', '.join(KINDS)}, got {given}")
        self._check_texts()
        if self.choice is not None:
            object.__setattr__(self, "choice", _checked_choice(self.choice))
        if self.thought not in ("", "optional", "opened", "channels"):
            raise _invalid("thought", "must be empty, optional, opened or channels")
        if self.json_object not in (None, True, False):
            raise _invalid("json_object", "must be true or false")
        if not isinstance(self.scope, str):
            raise _invalid("scope", "must be a text")
        for name in ("disable_any_whitespace", "disable_additional_properties"):
            if not isinstance(getattr(self, name), bool):
                raise _invalid(name, "must be true or false")

    def _check_texts(self) -> None:
        limits = {
            "regex": MAX_REGEX_CHARS,
            "grammar": MAX_GRAMMAR_CHARS,
            "whitespace_pattern": 256,
            "tool_calls": MAX_TOOL_FORM_CHARS,
        }
        for name, limit in limits.items():
            text = getattr(self, name)
            if text is not None and (not isinstance(text, str) or not 0 < len(text) <= limit):
                raise _invalid(name, f"must be a text of 1 to {limit} characters")
        for name in ("json", "structural_tag"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, (str, Mapping)):
                raise _invalid(name, "must be an object, or the text of one")
            if isinstance(value, str) and len(value) > MAX_SCHEMA_CHARS:
                raise _invalid(name, f"has more than {MAX_SCHEMA_CHARS} characters")

    @property
    def kind(self) -> str:
        """The one of ``KINDS`` that is asked for."""
        return next(name for name in KINDS if getattr(self, name) not in (None, False))


def _checked_choice(choice: Sequence[str]) -> tuple[str, ...]:
    ok = isinstance(choice, (list, tuple)) and 0 < len(choice) <= MAX_CHOICES_TO_PICK
    if not ok or not all(isinstance(text, str) and text for text in choice):
        raise _invalid("choice", f"must be a list of 1 to {MAX_CHOICES_TO_PICK} non-empty texts")
    texts = tuple(dict.fromkeys(choice))
    if sum(map(len, texts)) > MAX_SCHEMA_CHARS:
        raise _invalid("choice", f"has more than {MAX_SCHEMA_CHARS} characters together")
    return texts


def _invalid(name: str | None, what: str) -> InvalidRequestError:
    param = PARAM if name is None else f"{PARAM}.{name}"
    return InvalidRequestError(f"{param} {what}", param=param)
