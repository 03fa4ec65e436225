"""Structural tags: free text, with parts of a given form after what triggers them.

The form is the one of vLLM and XGrammar: ``structures``, each with a ``begin``, a ``schema`` and an
``end``, and ``triggers``, of which each ``begin`` starts with one; or, newer, a ``format``.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from twostroke.constraints.structural_format import format_grammar
from twostroke.core.errors import InvalidRequestError
from twostroke.text.tokenizer import Tokenizer

MAX_STRUCTURES = 256
InlineSchema = Callable[[Any, str], str]  # a schema and its path, to the JSON of the library


def structural_tag_grammar(
    tag: Any, tokenizer: Tokenizer, param: str, inline_schema: InlineSchema
) -> str:
    """The grammar, in Lark's notation.

    Args:
        inline_schema: Checks a schema, and writes it as the library takes it.

    Raises:
        InvalidRequestError: The tag is malformed, or a schema in it cannot be enforced.
    """
    if isinstance(tag, dict) and tag.get("format") is not None:
        if unknown := tag.keys() - {"type", "format"}:
            raise _invalid(f"{param}.{min(unknown)}", "does not go with format")
        return format_grammar(tag["format"], tokenizer, f"{param}.format", inline_schema)
    structures, triggers = _read(tag, param)
    lines = ["%llguidance {}", "TEXT: /(.|\\n)*/"]
    names = []
    for place, structure in enumerate(structures):
        path = f"{param}.structures[{place}]"
        trigger = next((t for t in triggers if structure["begin"].startswith(t)), None)
        if trigger is None:
            raise _invalid(path, "must have a 'begin' that starts with one of the triggers")
        name = f"part_{place}"
        rest, end = structure["begin"][len(trigger) :], structure["end"]
        body = f"{_text(rest)} %json {inline_schema(structure['schema'], path)} {_text(end)}"
        token = tokenizer.backend.token_to_id(trigger)
        if token is not None and token in tokenizer.special_ids:
            lines.append(f"{name}: TEXT <[{token}]> {body}")
        else:
            lines.append(f"{name}_opening[lazy]: TEXT {_text(trigger)}")
            lines.append(f"{name}: {name}_opening {body}")
        names.append(name)
    lines.insert(1, f"start: ({' | '.join(names)})* ending\nending: TEXT")
    return "\n".join(lines) + "\n"


def _read(tag: Any, param: str) -> tuple[list[dict[str, Any]], list[str]]:
    if not isinstance(tag, dict):
        raise _invalid(param, "must be an object")
    if unknown := tag.keys() - {"type", "structures", "triggers"}:
        raise _invalid(f"{param}.{min(unknown)}", "is not supported")
    structures, triggers = tag.get("structures"), tag.get("triggers")
    if not isinstance(triggers, list) or not triggers or not all(map(_is_text, triggers)):
        raise _invalid(f"{param}.triggers", "must be a list of non-empty texts")
    if not isinstance(structures, list) or not 0 < len(structures) <= MAX_STRUCTURES:
        raise _invalid(f"{param}.structures", f"must be a list of 1 to {MAX_STRUCTURES} objects")
    for place, structure in enumerate(structures):
        path = f"{param}.structures[{place}]"
        if not isinstance(structure, dict) or structure.keys() != {"begin", "schema", "end"}:
            raise _invalid(path, "must be an object with 'begin', 'schema' and 'end'")
        if not _is_text(structure["begin"]) or not isinstance(structure["end"], str):
            raise _invalid(path, "must have texts as 'begin' and 'end'")
    return structures, triggers


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if text else ""


def _invalid(param: str, what: str) -> InvalidRequestError:
    return InvalidRequestError(f"{param} {what}", param=param)
