"""Protects: named beginnings of prompts show what requests share, and what a cache lost."""

from __future__ import annotations

from itertools import pairwise

from benchmarks.doctor.simulated_faults import Setup, run_engine
from twostroke.doctor.shared_prefixes import reuse_of
from twostroke.observability.frames.prefix_keys import prefix_keys, prefix_marks
from twostroke.simulator.workloads.base import RequestSpec


def specs(count: int, groups: int) -> list[RequestSpec]:
    """Requests one after another, in turn from each group."""
    return [
        RequestSpec(number, 3.0 * number, 200, 4, ((number % groups, 192),))
        for number in range(count)
    ]


def test_marks_are_few_and_dense() -> None:
    marks = list(prefix_marks(10_000))
    assert marks[:10] == [1, 2, 3, 4, 6, 8, 12, 16, 24, 32]
    assert len(marks) < 30
    assert all(after <= 2 * before for before, after in pairwise(marks))
    assert list(prefix_marks(0)) == []


def test_equal_beginnings_have_equal_keys() -> None:
    one, other = [bytes([n]) * 16 for n in range(8)], [bytes([n]) * 16 for n in range(8)]
    other[5:] = [b"x" * 16, b"y" * 16, b"z" * 16]
    shared = [a == b for a, b in zip(prefix_keys(one), prefix_keys(other))]
    assert shared == [True, True, True, True, False, False]


def test_a_cache_that_holds_all_loses_nothing() -> None:
    reuse = reuse_of(run_engine(specs(30, 5), Setup()))
    assert reuse.lost_tokens == 0
    assert reuse.cached_tokens == 25 * 192


def test_what_was_evicted_is_counted() -> None:
    """Each of five beginnings is computed six times; the cache has room for two."""
    reuse = reuse_of(run_engine(specs(30, 5), Setup(blocks=26)))
    assert reuse.cached_tokens == 0
    assert reuse.lost_tokens == 25 * 192
