"""One tool call as a rule: the form of a model's family, arguments by each tool's schema.

What these rules allow, the parsers in ``text/answer_parsing/`` read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from twostroke.constraints.rules import Rules, quoted
from twostroke.constraints.schemas.schema_keywords import ANNOTATIONS, TYPES
from twostroke.core.errors import InvalidRequestError
from twostroke.text.answer_parsing.families import HARMONY
from twostroke.text.answer_parsing.json_calls import (
    DEEPSEEK_CALL_BEGIN,
    DEEPSEEK_CALL_END,
    DEEPSEEK_CALLS_BEGIN,
    DEEPSEEK_CALLS_END,
    DEEPSEEK_SEPARATOR,
)
from twostroke.text.answer_parsing.xml_calls import is_text

InlineSchema = Callable[[Any, str], str]  # a schema and its path, to the JSON of the library
_ANY_OBJECT: Mapping[str, Any] = {"type": "object"}
_DEFINITIONS = frozenset({"$defs", "definitions"})
# Families that write arguments one by one, by name, and so keep these of their schema alone.
_BY_NAME = frozenset({"qwen3_coder", "pythonic"})
_KEPT_BY_NAME = _DEFINITIONS | {"type", "properties", "required", "additionalProperties"}
_KEPT_OF_TEXT = _DEFINITIONS | {"type", "enum", "const"}
# Families whose calls open with a text that nothing else in an answer has.
TRIGGERS = {
    "hermes": "<tool_call>",
    "qwen3_coder": "<tool_call>",
    "mistral": "[TOOL_CALLS]",
    "deepseek_v3": DEEPSEEK_CALLS_BEGIN,
}
CONSTRAINED_FAMILIES = frozenset({*TRIGGERS, "llama3_json", "pythonic", HARMONY})


class Frame(NamedTuple):
    """What stands around the calls of an answer, and between two of them."""

    opening: str = ""
    separator: str = ""
    closing: str = ""


def frame_of(family: str, rules: Rules) -> Frame:
    """What stands around a family's calls."""
    match family:
        case "hermes" | "qwen3_coder":
            return Frame(separator="\n")
        case "llama3_json":
            return Frame(separator="; ")
        case "pythonic":
            return Frame("[", ", ", "]")
        case "mistral" if rules.is_special("[ARGS]"):
            return Frame()
        case "mistral":
            return Frame("[TOOL_CALLS] [", ", ", "]")
        case "deepseek_v3":
            return Frame(DEEPSEEK_CALLS_BEGIN, "\n", DEEPSEEK_CALLS_END)
        case _:
            return Frame()


def add_call(
    rules: Rules,
    family: str,
    place: int,
    function: Mapping[str, Any],
    inline_schema: InlineSchema,
    *,
    opened: bool = False,
    as_json: bool = False,
) -> str:
    """Add a rule for calls of one function.

    Args:
        opened: The trigger has been read.
        as_json: The call is an object like any other, where the answer may be another one: its
            tokens are those of JSON, and do not compete with them.

    Returns:
        The rule's name.
    """
    name, schema = function["name"], function["parameters"] or {"type": "object", "properties": {}}
    rule = f"call_{place}{'_opened' if opened else ''}"

    def json_of(part: Any, path: str) -> str:
        instead = _ANY_OBJECT if part is schema else _of_type(part)
        return f"%json {_inlined(part, path, function['strict'], inline_schema, instead)}"

    if as_json and family == "llama3_json":
        inlined = _inlined(schema, function["path"], function["strict"], inline_schema)
        rules.add(rule, f"%json {json.dumps(_call_object(name, json.loads(inlined)))}")
        return rule
    before, after = _around(family, name, rules)
    before = before.removeprefix(TRIGGERS[family]) if opened else before
    if function["strict"] and family in _BY_NAME:
        _refuse_unkept(schema, family, function["path"])
    if family == "qwen3_coder":
        arguments = _xml_arguments(rules, rule, schema, function["path"], json_of)
    elif family == "pythonic":
        arguments = _python_arguments(rules, rule, schema, function["path"], json_of)
    else:
        arguments = json_of(schema, function["path"])
    if family == HARMONY:
        headers = (rules.literal(header) for header in harmony_headers(name))
        # The token that ends a call may be one of the model's end tokens, or not.
        end = f"({rules.literal('<|call|>')})?" if rules.is_special("<|call|>") else ""
        rules.add(rule, f"({' | '.join(headers)}) {arguments} {end}")
    else:
        rules.add(rule, f"{rules.literal(before)} {arguments} {rules.literal(after)}")
    return rule


def harmony_headers(name: str) -> list[str]:
    """How a message to a function may begin, behind ``<|start|>assistant``.

    Source: OpenAI, "OpenAI harmony response format" (2025): the recipient stands in the role or
    in the channel.
    """
    kinds = (" <|constrain|>json", " json", "")
    by_channel = [f"<|channel|>commentary to=functions.{name}{kind}" for kind in kinds]
    by_role = [f" to=functions.{name}<|channel|>commentary{kind}" for kind in kinds]
    return [f"{header}<|message|>" for header in by_channel + by_role]


def _call_object(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """The schema of a whole call, from the rewritten one of its arguments."""
    shared = {key: arguments.pop(key) for key in ("x-guidance", "$defs") if key in arguments}
    definitions = shared.get("$defs", {})
    if _refers_to_root([arguments, definitions]):
        # There is another root now.
        definitions = _redirected({**definitions, "arguments": arguments})
        arguments = {"$ref": "#/$defs/arguments"}
    return {
        "x-guidance": shared["x-guidance"],
        "$defs": definitions,
        "type": "object",
        "properties": {"name": {"const": name}, "parameters": arguments},
        "required": ["name", "parameters"],
        "additionalProperties": False,
    }


def _refers_to_root(value: Any) -> bool:
    if isinstance(value, dict):
        return value.get("$ref") == "#" or any(map(_refers_to_root, value.values()))
    return isinstance(value, list) and any(map(_refers_to_root, value))


def _redirected(value: Any) -> Any:
    if isinstance(value, dict):
        redirected = {key: _redirected(item) for key, item in value.items()}
        return redirected | ({"$ref": "#/$defs/arguments"} if value.get("$ref") == "#" else {})
    return [_redirected(item) for item in value] if isinstance(value, list) else value


def _around(family: str, name: str, rules: Rules) -> tuple[str, str]:
    quoted_name = json.dumps(name)
    match family:
        case "hermes":
            return f'<tool_call>\n{{"name": {quoted_name}, "arguments": ', "}\n</tool_call>"
        case "qwen3_coder":
            return f"<tool_call>\n<function={name}>\n", "</function>\n</tool_call>"
        case "llama3_json":
            return f'{{"name": {quoted_name}, "parameters": ', "}"
        case "pythonic":
            return f"{name}(", ")"
        case "mistral" if rules.is_special("[ARGS]"):
            return f"[TOOL_CALLS]{name}[ARGS]", ""
        case "mistral":
            return f'{{"name": {quoted_name}, "arguments": ', "}"
        case "deepseek_v3":
            opening = f"{DEEPSEEK_CALL_BEGIN}function{DEEPSEEK_SEPARATOR}{name}\n```json\n"
            return opening, f"\n```{DEEPSEEK_CALL_END}"
        case _:
            return "", ""


def _inlined(
    schema: Any,
    path: str,
    strict: bool,
    inline_schema: InlineSchema,
    instead: Mapping[str, Any] = _ANY_OBJECT,
) -> str:
    """A schema as the library takes it; ``instead`` where it cannot be enforced and need not be."""
    try:
        return inline_schema(schema, path)
    except InvalidRequestError:
        if strict:
            raise
        return inline_schema(instead, path)


def _refuse_unkept(schema: Mapping[str, Any], family: str, path: str) -> None:
    """Name what a strict tool asks and the family's form cannot keep.

    Raises:
        InvalidRequestError: A keyword would be lost.
    """
    _refuse_others(schema, _KEPT_BY_NAME, family, path)
    if family == "qwen3_coder":
        for name, part in (schema.get("properties") or {}).items():
            if isinstance(part, Mapping) and is_text(part):
                _refuse_others(part, _KEPT_OF_TEXT, family, f"{path}.properties.{name}")


def _refuse_others(schema: Mapping[str, Any], kept: frozenset[str], family: str, path: str) -> None:
    for keyword in schema:
        if keyword not in kept | ANNOTATIONS and not keyword.startswith("x-"):
            raise InvalidRequestError(
                f"{path} has {keyword!r}, which the calls of this model ({family}) cannot keep",
                hint=f"leave {keyword} out, or send the tool without strict",
                param=path,
            )


def _of_type(schema: Any) -> Mapping[str, Any]:
    """What is left of a property's schema that cannot be enforced: its type, where it is one."""
    kind = schema.get("type") if isinstance(schema, Mapping) else None
    return {"type": kind} if isinstance(kind, str) and kind in TYPES else {}


def _properties(schema: Mapping[str, Any]) -> list[tuple[str, Any, bool]]:
    """Names, schemas and whether they must be there; each schema with the definitions it uses."""
    shared = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    required = set(schema.get("required") or ())
    return [
        (name, {**part, **shared} if isinstance(part, Mapping) else part, name in required)
        for name, part in (schema.get("properties") or {}).items()
    ]


def _xml_arguments(
    rules: Rules,
    rule: str,
    schema: Mapping[str, Any],
    path: str,
    json_of: Callable[[Any, str], str],
) -> str:
    parts = []
    for place, (name, part, required) in enumerate(_properties(schema)):
        if ">" in name or "\n" in name:
            raise InvalidRequestError(f"{path} has a property that no tag can name", param=path)
        key = f"{rule}_{place}"
        opening = rules.literal(f"<parameter={name}>\n")
        if listed := _listed_texts(part):
            texts = " | ".join(quoted(text) or '""' for text in listed)
            value = f"({texts}) {rules.literal(chr(10) + '</parameter>')}"
        elif isinstance(part, Mapping) and is_text(part) and not {"enum", "const"} & part.keys():
            value = rules.after_text("\n</parameter>", f"{key}_text")
        else:
            value = f"{json_of(part, f'{path}.properties.{name}')} {quoted(chr(10))}"
            value += f" {rules.literal('</parameter>')}"
        rules.add(key, f"{opening} {value} {quoted(chr(10))}")
        parts.append(key if required else f"{key}?")
    return " ".join(parts)


def _python_arguments(
    rules: Rules,
    rule: str,
    schema: Mapping[str, Any],
    path: str,
    json_of: Callable[[Any, str], str],
) -> str:
    """Named arguments in the schema's order, with commas between those that are there."""
    properties = _properties(schema)
    for place, (name, part, _) in enumerate(properties):
        if not name.isidentifier():
            raise InvalidRequestError(f"{path} has a property that is no name", param=path)
        value = json_of(part, f"{path}.properties.{name}")
        rules.add(f"{rule}_{place}", f"{quoted(f'{name}=')} {value}")
    following = ""  # what may come behind an argument, its comma included
    first = ""  # what may come where no argument has come
    for place in reversed(range(len(properties))):
        argument, required = f"{rule}_{place}", properties[place][2]
        rules.add(f"{argument}_first", f"{argument} {following}" + _or(first, not required))
        rules.add(f"{argument}_next", f'", " {argument} {following}' + _or(following, not required))
        first, following = f"{argument}_first", f"{argument}_next"
    return first


def _or(alternative: str, optional: bool) -> str:
    return f" | {alternative or chr(34) * 2}" if optional else ""


def _listed_texts(part: Any) -> list[str]:
    """The texts that a parameter may be, if its schema lists them; as the parser reads them."""
    if not isinstance(part, Mapping) or not is_text(part):
        return []
    values = [part["const"]] if "const" in part else part.get("enum")
    return [v for v in values if isinstance(v, str)] if isinstance(values, list) else []
