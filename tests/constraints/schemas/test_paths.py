"""The bound on references is never below what a walk through them can meet."""

from __future__ import annotations

import time
from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from twostroke.constraints.schemas.paths import SchemaPart, longest_path

NAMES = "abcdefg"
PARTS = st.dictionaries(
    st.sampled_from(NAMES),
    st.builds(SchemaPart, st.integers(0, 5), st.lists(st.sampled_from(NAMES), max_size=4)),
)


def longest_walk(
    parts: Mapping[str, SchemaPart], name: str, seen: frozenset[str] = frozenset()
) -> int:
    """The same by trying every way that comes to no part twice."""
    if name not in parts or name in seen:
        return 0
    below = (longest_walk(parts, ref, seen | {name}) for ref in parts[name].references)
    return parts[name].depth + max(below, default=0)


@given(PARTS)
def test_no_walk_is_longer(parts: dict[str, SchemaPart]) -> None:
    longest = max((longest_walk(parts, name) for name in parts), default=0)
    assert longest_path(parts) >= longest
    later = {n: p._replace(references=[r for r in p.references if r > n]) for n, p in parts.items()}
    longest = max((longest_walk(later, name) for name in later), default=0)
    assert longest_path(later) == longest  # exact where nothing refers back


def test_parts_in_a_circle_count_together() -> None:
    parts = {
        "a": SchemaPart(1, ["b"]),
        "b": SchemaPart(2, ["c"]),
        "c": SchemaPart(3, ["a", "d"]),
        "d": SchemaPart(4, []),
    }
    assert longest_path(parts) == 10
    assert longest_path({"a": SchemaPart(5, ["a", "nowhere"])}) == 5
    assert longest_path({}) == 0


def test_many_parts_take_no_recursion_and_little_time() -> None:
    """As many as a client's schema can hold, in one chain and in one circle."""
    count = 50_000
    chain = {str(n): SchemaPart(1, [str(n + 1)]) for n in range(count)}
    circle = chain | {str(count): SchemaPart(1, ["0"] * count)}
    began = time.thread_time()
    assert longest_path(chain) == count and longest_path(circle) == count + 1
    assert time.thread_time() - began < 2
