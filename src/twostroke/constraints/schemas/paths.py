"""How deep references lead: the library follows them by recursion."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple


class SchemaPart(NamedTuple):
    """A definition of a schema, or a rule of a grammar.

    Attributes:
        depth: Levels of what stands in it.
        references: Names of other parts.
    """

    depth: int
    references: Sequence[str]


def longest_path(parts: Mapping[str, SchemaPart]) -> int:
    """Most levels that anything leads through without coming to the same part twice.

    An upper bound: of parts that refer to each other in a circle, all are taken to be on the path.
    """
    longest: dict[str, int] = {}
    for circle in circles(parts):
        below = (
            longest[ref] for name in circle for ref in parts[name].references if ref in longest
        )
        most = max(below, default=0) + sum(parts[name].depth for name in circle)
        longest |= dict.fromkeys(circle, most)
    return max(longest.values(), default=0)


def circles(parts: Mapping[str, SchemaPart]) -> Iterator[list[str]]:
    """Parts that lead to one another, together, each after all that it leads to.

    Source: Tarjan, "Depth-first search and linear graph algorithms", SIAM J. Comput. 1 (1972); with
    a list in place of the recursion.
    """
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []
    on_path: set[str] = set()
    for root in parts:
        if root in order:
            continue
        visits = [(root, iter(parts[root].references))]
        order[root] = lowest[root] = len(order)
        path.append(root)
        on_path.add(root)
        while visits:
            name, rest = visits[-1]
            step = next((ref for ref in rest if ref in parts), None)
            if step is None:
                visits.pop()
                if visits:
                    above = visits[-1][0]
                    lowest[above] = min(lowest[above], lowest[name])
                if lowest[name] == order[name]:
                    circle = [path.pop()]
                    while circle[-1] != name:
                        circle.append(path.pop())
                    on_path.difference_update(circle)
                    yield circle
            elif step not in order:
                order[step] = lowest[step] = len(order)
                path.append(step)
                on_path.add(step)
                visits.append((step, iter(parts[step].references)))
            elif step in on_path:
                lowest[name] = min(lowest[name], order[step])
