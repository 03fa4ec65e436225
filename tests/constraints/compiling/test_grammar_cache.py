"""Grammars are kept within bounds, for the tenants alike, and as long as an answer needs them."""

from __future__ import annotations

import gc
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from tests.constraints import walks
from twostroke.constraints.compiling.grammar_cache import LOOKS_BETWEEN, GrammarCache
from twostroke.constraints.constraint import Constraint
from twostroke.core.structured_outputs import StructuredOutputsParams


class Sized:
    """Implements ``Grammar``, as far as a cache needs one."""

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes

    def start(
        self, end_token_ids: Sequence[int], vocab_size: int, *, alone: bool = False
    ) -> Constraint:
        raise NotImplementedError


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 30), st.integers(0, 40))))
def test_no_limit_is_exceeded(kept: list[tuple[str, int, int]]) -> None:
    cache = GrammarCache(8, 20, 100)
    grammars: dict[str, Sized] = {}
    for tenant, number, num_bytes in kept:
        description = f"{tenant}{number}"
        cache.keep(tenant, description, grammars.setdefault(description, Sized(num_bytes)))
        assert len(cache) <= 8
        assert cache.find(description) is grammars[description]  # the newest is always there
    held = [g for d, g in grammars.items() if d in cache._entries]
    assert sum(g.num_bytes for g in held) <= 100 or len(cache) == 1
    assert sum(len(d) for d in cache._entries) <= 20 or len(cache) == 1


def test_a_tenant_with_many_gives_up_its_own() -> None:
    cache = GrammarCache(8, 1000, 1000)
    light = Sized(1)
    cache.keep("light", "l", light)
    for number in range(50):
        cache.keep("heavy", f"h{number}", Sized(1))
    assert cache.find("l") is light and len(cache) == 8


def test_what_an_answer_holds_is_found_although_it_was_given_up() -> None:
    cache = GrammarCache(1, 1000, 1000)
    held = Sized(1)
    cache.keep("", "held", held)
    cache.keep("", "other", Sized(1))
    assert len(cache) == 1 and cache.find("held") is held
    del held
    gc.collect()
    assert cache.find("held") is None


def test_what_grows_while_it_is_used_is_given_up_in_time() -> None:
    cache = GrammarCache(8, 1000, 100)
    grown, used = Sized(1), Sized(1)
    cache.keep("", "grown", grown)
    cache.keep("", "used", used)
    grown.num_bytes = 200
    for _ in range(LOOKS_BETWEEN):
        assert cache.find("used") is used
    assert len(cache) == 1


def test_a_grammar_grows_with_what_is_written_in_its_form() -> None:
    grammar = walks.compiler().compile(StructuredOutputsParams(regex="[a-z]{1,4000}"))
    before = grammar.num_bytes
    constraint = grammar.start([walks.END], walks.tokenizer().vocab_size)
    for _ in range(50):
        constraint.advance(walks.token_ids(constraint.allowed())[-1:])
    assert grammar.num_bytes > before
