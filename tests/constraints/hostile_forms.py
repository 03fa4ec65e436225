"""Forms that have ended the process, by recursion over what a client sent, or have held it up.

    python -m tests.constraints.hostile_forms NAME

compiles one in a process of its own, takes a few tokens, and says how that ended.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from itertools import islice, product
from string import ascii_lowercase
from typing import Any

from tests.constraints import walks
from twostroke.core.errors import InvalidRequestError
from twostroke.core.structured_outputs import StructuredOutputsParams

LEVELS = 1_200  # with the eight megabytes of a usual stack, the library gets through 900


def chain(link: Callable[[dict[str, str]], dict[str, Any]], levels: int = LEVELS) -> dict[str, Any]:
    """A schema whose definitions each lead to the next."""
    to = [{"$ref": f"#/$defs/d{place}"} for place in range(levels + 1)]
    definitions = {f"d{place}": link(to[place + 1]) for place in range(levels)}
    return {"$defs": {**definitions, f"d{levels}": {"type": "string"}}, **to[0]}


def rules(body: str, levels: int, *, terminals: bool = False) -> str:
    """A grammar whose rules each lead to the next, in as few characters as may be."""
    names = ["".join(letters) for letters in islice(product(ascii_lowercase, repeat=3), levels)]
    if terminals:
        names = [name.upper() for name in names]
    lines = [f"{name}:{body.format(after)}" for name, after in zip(names, [*names[1:], '"x"'])]
    return "\n".join([f"start:{names[0]}", *lines])


SCHEMAS = {
    "items": chain(lambda to: {"type": "array", "items": to}),
    "properties": chain(lambda to: {"type": "object", "properties": {"a": to}}),
    "anyOf": chain(lambda to: {"anyOf": [to, {"type": "null"}]}),
    "prefixItems": chain(lambda to: {"type": "array", "prefixItems": [to]}),
    "the longest chain": chain(lambda to: {"items": to}, 9_000),
}
# Each has once been searched for an end from each of its characters.
UNENDED = {
    "texts": "start: " + '"\\' * 30_000,
    "expressions": "start: " + "/\\" * 30_000,
    "tokens": "start: " + "<" * 60_000,
}
FORMS = {
    **{f"schema of {name}": StructuredOutputsParams(json=s) for name, s in SCHEMAS.items()},
    **{f"{name} without end": StructuredOutputsParams(grammar=g) for name, g in UNENDED.items()},
    "rules": StructuredOutputsParams(grammar=rules("{}", 8_000)),
    "rules with text": StructuredOutputsParams(grammar=rules('{}"b"', 5_000)),
    "groups": StructuredOutputsParams(grammar=rules('(("b"|({}"d"))"c")', 2_500)),
    "terminals": StructuredOutputsParams(grammar=rules('{}"b"', 5_000, terminals=True)),
    "a schema in a grammar": StructuredOutputsParams(
        grammar=f"start: %json {json.dumps(chain(lambda to: {'items': to}, 1_000))}"
    ),
    "GBNF": StructuredOutputsParams(
        grammar="root ::= aaa\n" + rules("{}", 4_000).replace(":", " ::= ").split("\n", 1)[1]
    ),
    "parentheses": StructuredOutputsParams(grammar=f'start: {"(" * 30_000}"a"{")" * 30_000}'),
    "groups of an expression": StructuredOutputsParams(regex=f"{'(' * 15_000}a{')' * 15_000}"),
}


def main(name: str) -> None:
    try:
        constraint = walks.start(FORMS[name])
        for _ in range(3):
            constraint.advance(walks.token_ids(constraint.allowed())[:1])
            constraint.forced()
    except InvalidRequestError as error:
        print("refused", error.message[:300])
    else:
        print("compiled")


if __name__ == "__main__":
    main(sys.argv[1])
