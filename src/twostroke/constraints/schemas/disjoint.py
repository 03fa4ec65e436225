"""Whether no value can fit two JSON schemas: what makes ``oneOf`` the same as ``anyOf``."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import Any

from twostroke.constraints.schemas.json_values import WorkLimit

Resolve = Callable[[str], Any]
MAX_STEPS = 8  # references and properties that are followed to find a difference
# Units of ``WorkLimit``: what a comparison takes at least, and what one of two objects adds.
COMPARISON, OBJECTS = 20, 50


def first_overlap(options: list[Any], resolve: Resolve, work: WorkLimit) -> tuple[int, int] | None:
    """The first two options that one value might fit; ``None`` if all exclude one another.

    Raises:
        TooMuchWorkError: It takes longer than it may: each level multiplies the comparisons.
    """
    targets = [_target(option, resolve) for option in options]
    for (first, a), (second, b) in combinations(enumerate(targets), 2):
        if not are_disjoint(a, b, resolve, MAX_STEPS, work):
            return first, second
    return None


def are_disjoint(a: Any, b: Any, resolve: Resolve, steps: int, work: WorkLimit) -> bool:
    """Whether it is sure that no value fits both; ``False`` where that is not known."""
    work.spend(COMPARISON)
    a, b = _target(a, resolve), _target(b, resolve)
    if a is False or b is False:
        return True
    if not isinstance(a, dict) or not isinstance(b, dict) or steps == 0:
        return False
    types_a, types_b = _types(a), _types(b)
    if types_a is not None and types_b is not None and not types_a & types_b:
        return True
    values_a, values_b = _values(a), _values(b)
    if values_a is not None and values_b is not None:
        work.spend(len(values_a) * len(values_b))
        return not any(value in values_b for value in values_a)
    if types_a == types_b == {"object"}:
        return _objects_are_disjoint(a, b, resolve, steps - 1, work)
    return False


def _objects_are_disjoint(
    a: dict[str, Any], b: dict[str, Any], resolve: Resolve, steps: int, work: WorkLimit
) -> bool:
    """A property that one needs and the other forbids, or both need with different values."""
    work.spend(OBJECTS + len(_required(a)) + len(_required(b)))
    for one, other in ((a, b), (b, a)):
        closed = other.get("additionalProperties") is False and "patternProperties" not in other
        if closed and _required(one) - _properties(other).keys():
            return True
    properties_a, properties_b = _properties(a), _properties(b)
    return any(
        are_disjoint(properties_a[name], properties_b[name], resolve, steps, work)
        for name in sorted(_required(a) & _required(b))
        if name in properties_a and name in properties_b
    )


def _required(schema: dict[str, Any]) -> set[str]:
    names = schema.get("required")
    return {name for name in names if isinstance(name, str)} if isinstance(names, list) else set()


def _properties(schema: dict[str, Any]) -> dict[str, Any]:
    properties = schema.get("properties")
    return properties if isinstance(properties, dict) else {}


def _target(schema: Any, resolve: Resolve) -> Any:
    """What a schema refers to, if it does; what stands beside the reference only narrows it."""
    for _ in range(MAX_STEPS):
        if not isinstance(schema, dict) or not isinstance(schema.get("$ref"), str):
            return schema
        schema = resolve(schema["$ref"])
    return schema


def _types(schema: dict[str, Any]) -> set[str] | None:
    """The types that a value can have, integers as numbers; ``None`` for any."""
    kinds = schema.get("type")
    if kinds is None:
        values = _values(schema)
        return None if values is None else {_type_of(value) for value in values}
    names = kinds if isinstance(kinds, list) else [kinds]
    return {"number" if name == "integer" else str(name) for name in names}


def _values(schema: dict[str, Any]) -> list[Any] | None:
    """All values that it can have, if it lists them."""
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return values if isinstance(values, list) else None


def _type_of(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"
