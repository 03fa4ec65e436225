"""Structural tags in their newer form: a ``format`` that is built of others.

The names are XGrammar's, which vLLM takes as they are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from twostroke.core.errors import InvalidRequestError
from twostroke.text.tokenizer import Tokenizer
from twostroke.tools.rules import Rules

MAX_FORMATS = 512
MAX_DEPTH = 16
InlineSchema = Callable[[Any, str], str]  # a schema and its path, to the JSON of the library
# Escapes are read whole: a slash that has its backslash must not get another one.
_ESCAPED_OR_NOT = re.compile(r"\\.|/|\n", re.DOTALL)
_WRITTEN = {"/": r"\/", "\n": r"\n", "\\\n": r"\n"}
# What each type needs, and what it may have besides.
_FIELDS: Mapping[str, tuple[frozenset[str], frozenset[str]]] = {
    "const_string": (frozenset({"value"}), frozenset()),
    "json_schema": (frozenset({"json_schema"}), frozenset()),
    "regex": (frozenset({"pattern"}), frozenset()),
    "any_text": (frozenset(), frozenset()),
    "sequence": (frozenset({"elements"}), frozenset()),
    "or": (frozenset({"elements"}), frozenset()),
    "tag": (frozenset({"begin", "content", "end"}), frozenset()),
    "triggered_tags": (
        frozenset({"triggers", "tags"}),
        frozenset({"at_least_one", "stop_after_first"}),
    ),
    "tags_with_separator": (
        frozenset({"tags", "separator"}),
        frozenset({"at_least_one", "stop_after_first"}),
    ),
}


def format_grammar(
    given: Any, tokenizer: Tokenizer, param: str, inline_schema: InlineSchema
) -> str:
    """The grammar of a ``format``, in Lark's notation.

    Args:
        inline_schema: Checks a schema, and writes it as the library takes it.

    Raises:
        InvalidRequestError: It is malformed, or cannot be enforced; the message says where.
    """
    writer = _Writer(Rules(tokenizer), inline_schema)
    start = writer.expression(given, param, last=True)
    writer.rules.add("start", start or '""')
    return writer.rules.text()


class _Writer:
    """Writes formats as expressions; parts that need a name become rules."""

    def __init__(self, rules: Rules, inline_schema: InlineSchema) -> None:
        self.rules = rules
        self._inline_schema = inline_schema
        self._num_formats = 0
        self._num_names = 0

    def expression(self, given: Any, path: str, *, last: bool, depth: int = 0) -> str:
        """A format as an expression. ``last``: nothing follows, so that free text may stand there.

        An empty expression stands for no text.
        """
        self._num_formats += 1
        if depth > MAX_DEPTH or self._num_formats > MAX_FORMATS:
            _refuse(path, f"at most {MAX_FORMATS} formats, {MAX_DEPTH} levels deep, are taken")
        kind = _kind(given, path)
        match kind:
            case "const_string":
                return self.rules.literal(_text(given, "value", path))
            case "json_schema":
                schema = self._inline_schema(given["json_schema"], f"{path}.json_schema")
                return self._named(f"%json {schema}")
            case "regex":
                return self._regex(_text(given, "pattern", path))
            case "any_text":
                if not last:
                    _refuse(path, "any_text may stand at the end, or within a tag")
                return "TEXT"
            case "sequence" | "or":
                return self._listed(kind, given, path, last, depth)
            case "tag":
                return self._tag(given, path, "", depth)
            case "triggered_tags":
                if not last:
                    _refuse(path, "triggered_tags, which end with free text, may stand at the end")
                return self._triggered(given, path, depth)
            case _:
                tags = [self._tag(tag, p, "", depth) for tag, p in _tags(given, path)]
                separator = self.rules.literal(_text(given, "separator", path, empty=True))
                once = f"({' | '.join(tags)})"
                many = once if given.get("stop_after_first") else f"{once} ({separator} {once})*"
                return f"({many})" if given.get("at_least_one") else f"({many})?"

    def _listed(
        self, kind: str, given: Mapping[str, Any], path: str, last: bool, depth: int
    ) -> str:
        elements = given["elements"]
        if not isinstance(elements, list) or not elements:
            _refuse(f"{path}.elements", "must be a list of formats")
        written = [
            self.expression(
                element,
                f"{path}.elements[{place}]",
                last=last and (kind == "or" or place == len(elements) - 1),
                depth=depth + 1,
            )
            for place, element in enumerate(elements)
        ]
        if kind == "sequence":
            return " ".join(filter(None, written))
        return "(" + " | ".join(each or '""' for each in written) + ")"

    def _tag(self, tag: Any, path: str, trigger: str, depth: int) -> str:
        """Compile a tag; ``trigger`` is what of its beginning has been read."""
        begin = _text(tag, "begin", path, empty=True).removeprefix(trigger)
        ends = tag["end"] if isinstance(tag["end"], list) else [tag["end"]]
        if not ends or not all(isinstance(end, str) for end in ends):
            _refuse(f"{path}.end", "must be a text, or a list of texts")
        opening, content = self.rules.literal(begin), tag["content"]
        if isinstance(content, Mapping) and content.get("type") == "any_text":
            if not all(ends):
                _refuse(f"{path}.end", "must not be empty behind any_text")
            _kind(content, f"{path}.content")
            closed = [self.rules.after_text(end, self._new_name()) for end in ends]
            return self._named(f"{opening} ({' | '.join(closed)})")
        inner = self.expression(content, f"{path}.content", last=False, depth=depth + 1)
        closings = " | ".join(self.rules.literal(end) or '""' for end in ends)
        return self._named(f"{opening} {inner} ({closings})")

    def _triggered(self, given: Mapping[str, Any], path: str, depth: int) -> str:
        triggers = given["triggers"]
        if not isinstance(triggers, list) or not all(isinstance(t, str) and t for t in triggers):
            _refuse(f"{path}.triggers", "must be a list of non-empty texts")
        parts, whole = [], []
        for tag, place in _tags(given, path):
            begin = _text(tag, "begin", place)
            trigger = next((t for t in triggers if begin.startswith(t)), None)
            if trigger is None:
                _refuse(f"{place}.begin", "must start with one of the triggers")
            opened = self.rules.after_text(trigger, self._new_name())
            parts.append(self._named(f"{opened} {self._tag(tag, place, trigger, depth)}"))
            if given.get("at_least_one"):
                whole.append(self._tag(tag, place, "", depth))
        later = f"({' | '.join(parts)})"
        ending = self._named("TEXT")
        if given.get("stop_after_first"):
            return f"({' | '.join(whole)})" if whole else f"({later} | {ending})"
        first = f"({' | '.join(whole)}) " if whole else ""
        return f"{first}{later}* {ending}"

    def _regex(self, pattern: str) -> str:
        bare = pattern.removeprefix("^")
        if bare.endswith("$") and not bare.endswith("\\$"):
            bare = bare.removesuffix("$")
        name = self._new_name().upper()
        body = _ESCAPED_OR_NOT.sub(lambda found: _WRITTEN.get(found[0], found[0]), bare)
        self.rules.add(name, f"/{body}/")
        return name

    def _named(self, body: str) -> str:
        name = self._new_name()
        self.rules.add(name, body)
        return name

    def _new_name(self) -> str:
        self._num_names += 1
        return f"part_{self._num_names}"


def _kind(given: Any, path: str) -> str:
    """The type of a format that has the fields of its type, and no others."""
    if not isinstance(given, Mapping):
        _refuse(path, "must be an object with a type")
    kind = given.get("type")
    if not isinstance(kind, str) or kind not in _FIELDS:
        _refuse(f"{path}.type", f"must be one of {', '.join(sorted(_FIELDS))}")
    needed, possible = _FIELDS[kind]
    names = given.keys() - {"type"}
    if missing := needed - names:
        _refuse(f"{path}.{min(missing)}", "is missing")
    if unknown := names - needed - possible:
        _refuse(f"{path}.{min(unknown)}"[:200], "is not supported")
    for name in possible & names:
        if not isinstance(given[name], bool):
            _refuse(f"{path}.{name}", "must be true or false")
    return kind


def _tags(given: Mapping[str, Any], path: str) -> Sequence[tuple[Mapping[str, Any], str]]:
    """The tags of a format, checked, with their paths; their type may be left out."""
    tags = given["tags"]
    if not isinstance(tags, list) or not 0 < len(tags) <= MAX_FORMATS:
        _refuse(f"{path}.tags", f"must be a list of 1 to {MAX_FORMATS} tags")
    checked = []
    for place, tag in enumerate(tags):
        below = f"{path}.tags[{place}]"
        whole = {"type": "tag", **tag} if isinstance(tag, Mapping) else tag
        if _kind(whole, below) != "tag":
            _refuse(f"{below}.type", "must be tag")
        checked.append((whole, below))
    return checked


def _text(given: Mapping[str, Any], name: str, path: str, *, empty: bool = False) -> str:
    value = given[name]
    if not isinstance(value, str) or not (value or empty):
        _refuse(f"{path}.{name}", "must be a text" + ("" if empty else " that is not empty"))
    return value


def _refuse(path: str, what: str) -> NoReturn:
    raise InvalidRequestError(f"{path} {what}", param=path)
