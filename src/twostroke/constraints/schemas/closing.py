"""Which objects of a schema may be held to the properties that they list."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

from twostroke.constraints.schemas.json_values import WorkLimit

# Which objects that say nothing of further properties have none: no objects; those that list some
# and that nothing else extends; all, as vLLM's ``disable_additional_properties`` asks.
Closing = Literal["none", "listed", "all"]
LOOK = 2  # units of ``WorkLimit`` for each value
_TOGETHER = ("anyOf", "oneOf")  # one option of each holds


def closed_objects(
    root: Any, closing: Closing, resolve: Callable[[str], Any], work: WorkLimit
) -> Callable[[dict[str, Any]], bool]:
    """Tells of each schema within ``root`` whether its objects are to be closed.

    With ``listed``, an object without ``properties`` stays free, and so does one of which another
    schema (beside it in ``allOf``, an option, or what a ``$ref`` leads to) may list more.

    Args:
        resolve: What a reference leads to.

    Raises:
        TooMuchWorkError: The schema takes too long to look through.
    """
    if closing == "none":
        return lambda schema: False
    if closing == "all":
        return lambda schema: "properties" in schema or schema.get("type") == "object"
    extended = _extended(root, resolve, work)
    return lambda schema: id(schema) not in extended and _fits_what_it_lists(schema)


def _fits_what_it_lists(schema: dict[str, Any]) -> bool:
    """Whether an object can have no more than its properties and still be what is asked for."""
    properties = schema.get("properties")
    if properties is None:
        return False
    if "patternProperties" in schema:
        return True
    least = schema.get("minProperties", 0)
    names = set(properties)
    return names.issuperset(schema.get("required", ())) and bool(least <= len(names))


def _extended(root: Any, resolve: Callable[[str], Any], work: WorkLimit) -> set[int]:
    """The identities of schemas that describe an object together with others."""
    extended: set[int] = set()
    for schema in _schemas(root, work):
        groups = _applied_with(schema, resolve)
        if len(groups) + ("properties" in schema or "patternProperties" in schema) < 2:
            continue
        together = [schema, *(part for group in groups for part in group)]
        while together:
            part = together.pop()
            work.spend(LOOK)
            if id(part) not in extended:
                extended.add(id(part))
                together += [p for group in _applied_with(part, resolve) for p in group]
    return extended


def _applied_with(schema: dict[str, Any], resolve: Callable[[str], Any]) -> list[list[Any]]:
    """What else describes the value that a schema describes; of each group one part at least."""
    groups = [[part] for part in _list(schema, "allOf")]
    groups += [_list(schema, keyword) for keyword in _TOGETHER if _list(schema, keyword)]
    if isinstance(reference := schema.get("$ref"), str):
        groups.append([resolve(reference)])
    kept = ([part for part in group if isinstance(part, dict)] for group in groups)
    return [group for group in kept if group]


def _list(schema: dict[str, Any], keyword: str) -> list[Any]:
    value = schema.get(keyword)
    return value if isinstance(value, list) else []


def _schemas(root: Any, work: WorkLimit) -> Iterator[dict[str, Any]]:
    """All objects within a schema: schemas, and what may look like one."""
    values = [root]
    while values:
        value = values.pop()
        work.spend(LOOK)
        if isinstance(value, dict):
            yield value
            values += value.values()
        elif isinstance(value, list):
            values += value
