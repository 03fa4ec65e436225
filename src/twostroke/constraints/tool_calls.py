"""One tool call as a rule: in the form of a family, with arguments by the tool's schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from twostroke.constraints.lark_rules import InlineSchema
from twostroke.constraints.schemas.schema_keywords import ANNOTATIONS, TYPES
from twostroke.core.errors import InvalidRequestError
from twostroke.tools.base import CallRule, ToolFamily
from twostroke.tools.rules import Rules

_ANY_OBJECT: Mapping[str, Any] = {"type": "object"}


def add_call(
    rules: Rules,
    family: ToolFamily,
    place: int,
    function: Mapping[str, Any],
    inline_schema: InlineSchema,
    *,
    opened: bool = False,
    is_choice: bool = False,
) -> str:
    """Add a rule for calls of one function.

    Args:
        opened: The trigger has been read.
        is_choice: The answer may be another JSON object.

    Returns:
        The rule's name.

    Raises:
        InvalidRequestError: The function is strict, and its schema cannot be enforced.
    """
    schema = function["parameters"] or {"type": "object", "properties": {}}
    strict = function["strict"]

    def inlined(part: Any, path: str) -> str:
        try:
            return inline_schema(part, path)
        except InvalidRequestError:
            if strict:
                raise
            return inline_schema(_ANY_OBJECT if part is schema else _of_type(part), path)

    def keep_only(part: Mapping[str, Any], keywords: frozenset[str], path: str) -> None:
        if strict:
            _refuse_others(part, keywords, family.name, path)

    rule = CallRule(
        rules,
        name=f"call_{place}{'_opened' if opened else ''}",
        function=function["name"],
        schema=schema,
        path=function["path"],
        opened_by=family.trigger if opened else "",
        is_choice=is_choice,
        inlined=inlined,
        keep_only=keep_only,
    )
    rules.add(rule.name, family.call(rule))
    return rule.name


def _refuse_others(schema: Mapping[str, Any], kept: frozenset[str], family: str, path: str) -> None:
    """Name what a strict tool asks and the family's form cannot keep."""
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
