"""How many ways intersected expressions go on: the library follows all pairs of them.

Of two expressions that must both match, it pairs each way in which one may go on with each of the
other's, and so on with a third, before it looks at its own limits. So the product is bounded here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from twostroke.constraints.schemas.json_values import WorkLimit
from twostroke.constraints.schemas.paths import SchemaPart, circles

MAX_WAYS = 100_000  # a step of the library through this many pairs takes 0.3 s
MAX_CHOICES = 256  # of what may hold at one place; beyond, all of it is taken to hold together
FORMAT_WAYS = 64  # of the expressions that stand for formats
WALK = 5  # units of ``WorkLimit`` for each schema that is looked at
_MANY = frozenset("[.|\\?*+{")  # after each of these an expression may go on in one more way
_OTHERS = "\n"  # names and places that no schema lists
_OWN = {"pattern", "format", "minLength", "maxLength", "properties", "patternProperties"}
_OWN |= {"additionalProperties", "prefixItems", "items"}
Schema = dict[str, Any]
Together = tuple[Schema, ...]  # schemas that hold at one place, each of them once


def num_ways(expression: str) -> int:
    """An upper bound of the ways in which an expression goes on; it may begin anywhere."""
    return 2 + sum(character in _MANY for character in expression)


def most_ways(root: Any, definitions: Mapping[str, Any], work: WorkLimit) -> int:
    """The largest product that any text in a rewritten schema leads to; not all beyond the limit.

    Args:
        definitions: By the text of the reference to each.
        work: Is spent on what is looked at; it raises ``TooMuchWorkError``.
    """
    if _ways_of_all([root, *definitions.values()]) <= MAX_WAYS:
        return 1  # even if all that it holds were intersected
    return _Walk(definitions, work).most_ways(root)


class _Walk:
    def __init__(self, definitions: Mapping[str, Any], work: WorkLimit) -> None:
        self._definitions = definitions
        self._work = work
        # Of each definition what may hold where it is referred to.
        self._known: dict[str, list[Together]] = {}

    def most_ways(self, root: Any) -> int:
        parts = {
            name: SchemaPart(1, list(_leads_to(each))) for name, each in self._definitions.items()
        }
        for circle in circles(parts):
            for name in circle:
                self._known[name] = self._choices([self._definitions[name]])
        max_ways, seen, pending = 1, set[frozenset[int]](), self._choices([root])
        while pending and max_ways <= MAX_WAYS:
            together = pending.pop()
            key = frozenset(map(id, together))
            if key not in seen:
                seen.add(key)
                self._work.spend(WALK * len(together))
                max_ways = max(max_ways, _ways(together))
                for below in _below(together):
                    pending.extend(self._choices(below))
        return max_ways

    def _choices(self, schemas: Sequence[Any]) -> list[Together]:
        """What may hold together where all of ``schemas`` do: one option of each ``anyOf``."""
        choices: list[Together] = [()]
        for schema in schemas:
            if isinstance(schema, dict):
                choices = self._both(choices, self._choices_of(schema))
        return choices

    def _choices_of(self, schema: Schema) -> list[Together]:
        choices: list[Together] = [(schema,) if _OWN.intersection(schema) else ()]
        for each in schema.get("allOf", ()):
            choices = self._both(choices, self._choices([each]))
        if "$ref" in schema:  # of a circle, the rest adds nothing
            choices = self._both(choices, self._known.get(schema["$ref"], [()]))
        if "anyOf" in schema:
            options = [choice for each in schema["anyOf"] for choice in self._choices([each])]
            choices = self._both(choices, self._few(options))
        return choices

    def _both(self, one: list[Together], other: list[Together]) -> list[Together]:
        if len(one) * len(other) > MAX_CHOICES:
            one, other = [_joined(one)], [_joined(other)]
        return self._few([_joined([a, b]) for a in one for b in other])

    def _few(self, choices: list[Together]) -> list[Together]:
        """Each choice once; of too many one, in which all of them hold."""
        self._work.spend(WALK * sum(1 + len(each) for each in choices))
        different = {frozenset(map(id, each)): each for each in choices}
        few = list(different.values())
        return few if len(few) <= MAX_CHOICES else [_joined(few)]


def _joined(choices: Iterable[Together]) -> Together:
    return tuple({id(schema): schema for choice in choices for schema in choice}.values())


def _leads_to(schema: Any) -> Iterator[str]:
    """The references that hold at the same place as a schema."""
    if isinstance(schema, dict):
        if "$ref" in schema:
            yield schema["$ref"]
        for each in (*schema.get("allOf", ()), *schema.get("anyOf", ())):
            yield from _leads_to(each)


def _ways_of_all(pending: list[Any]) -> int:
    """The product over all expressions in JSON values, or a part of it that is beyond the limit."""
    ways = 2
    while pending and ways <= MAX_WAYS:
        node = pending.pop()
        if isinstance(node, dict):
            pending.extend(node.values())
            if isinstance(node.get("patternProperties"), dict):
                ways *= math.prod(map(num_ways, node["patternProperties"]))
            if isinstance(node.get("pattern"), str):
                ways *= num_ways(node["pattern"])
            ways *= FORMAT_WAYS if "format" in node else 1
        elif isinstance(node, list):
            pending.extend(node)
    return ways


def _ways(together: Together) -> int:
    ways = 1
    for schema in together:
        ways *= num_ways(schema["pattern"]) if "pattern" in schema else 1
        ways *= FORMAT_WAYS if "format" in schema else 1
    if any(name in schema for schema in together for name in ("minLength", "maxLength")):
        ways *= 2
    names = [name for schema in together for name in schema.get("patternProperties", ())]
    widest = sorted(map(num_ways, names))[-2:]
    return max(ways, widest[0] * widest[-1]) if names else ways


def _below(together: Together) -> Iterator[list[Any]]:
    """What holds together at each place within: at each name, and at each item."""
    patterns = [
        each for schema in together for each in schema.get("patternProperties", {}).values()
    ]
    names = [
        {**schema.get("properties", {}), _OTHERS: schema.get("additionalProperties")}
        for schema in together
    ]
    places = [
        {**dict(enumerate(schema.get("prefixItems", ()))), _OTHERS: schema.get("items")}
        for schema in together
    ]
    for tables, everywhere in ((names, patterns), (places, [])):
        for name in {name: None for table in tables for name in table}:
            yield [*(table.get(name, table[_OTHERS]) for table in tables), *everywhere]
