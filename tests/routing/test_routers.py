"""Routers choose by what they see, keep no replica that is gone, and decide the same each time."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import TypeVar

import pytest

from twostroke.observability.routes import RouteReason
from twostroke.routing.routers import (
    MAX_IMBALANCE,
    MIN_PREFIX_SHARE,
    LeastLoaded,
    PrefixAffinity,
    RoundRobin,
    RoutedRequest,
    Router,
    RouterName,
    make_router,
)

REQUEST = RoutedRequest(100)
T = TypeVar("T")


def chosen(router: Router[T], request: RoutedRequest, loads: Mapping[T, int]) -> T:
    return router.route(request, loads).replica


def with_prefix(*segments: tuple[str, int], prompt_tokens: int = 100) -> RoutedRequest:
    return RoutedRequest(prompt_tokens, segments)


def test_round_robin_takes_one_after_the_other_whatever_their_load() -> None:
    router = RoundRobin[str]()
    loads = {"a": 9, "b": 0, "c": 5}
    assert [chosen(router, REQUEST, loads) for _ in range(7)] == [*"abcabca"]


def test_round_robin_goes_on_when_replicas_come_and_go() -> None:
    router = RoundRobin[str]()
    assert [chosen(router, REQUEST, dict.fromkeys("abc", 0)) for _ in range(2)] == ["a", "b"]
    assert chosen(router, REQUEST, {"a": 0}) == "a"
    assert chosen(router, REQUEST, {"a": 0, "d": 0}) == "a"
    assert chosen(router, REQUEST, {"a": 0, "d": 0}) == "d"


def test_least_loaded_takes_the_first_of_several() -> None:
    assert chosen(LeastLoaded[str](), REQUEST, {"a": 3, "b": 1, "c": 1}) == "b"


def test_affinity_follows_a_prefix() -> None:
    router = PrefixAffinity[str]()
    assert chosen(router, with_prefix(("x", 80)), {"a": 1, "b": 0}) == "b"
    assert chosen(router, with_prefix(("x", 80)), {"a": 0, "b": 1}) == "b"
    assert chosen(router, with_prefix(("y", 80)), {"a": 0, "b": 1}) == "a"


def test_affinity_follows_the_longest_known_prefix() -> None:
    router = PrefixAffinity[str]()
    chosen(router, with_prefix(("system", 40)), {"a": 0, "b": 1})
    chosen(router, with_prefix(("chat", 90)), {"a": 1, "b": 0})
    request = with_prefix(("system", 40), ("chat", 90), ("turn", 20), prompt_tokens=130)
    assert chosen(router, request, {"a": 0, "b": 0}) == "b"


def test_affinity_moves_a_prefix_with_the_request() -> None:
    """After an overload the prefix is where it was sent last."""
    router = PrefixAffinity[str]()
    request = with_prefix(("x", 80))
    assert chosen(router, request, {"a": 0, "b": 1}) == "a"
    assert chosen(router, request, {"a": MAX_IMBALANCE, "b": 0}) == "a"
    assert chosen(router, request, {"a": MAX_IMBALANCE + 1, "b": 0}) == "b"
    assert chosen(router, request, {"a": 0, "b": 1}) == "b"


def test_affinity_ignores_a_short_prefix() -> None:
    tokens = 10
    for prompt_tokens, replica in ((33, "a"), (34, "b")):
        router = PrefixAffinity[str]()
        chosen(
            router, with_prefix(("system", tokens), prompt_tokens=prompt_tokens), {"a": 0, "b": 1}
        )
        assert (tokens >= MIN_PREFIX_SHARE * prompt_tokens) is (replica == "a")
        request = with_prefix(("system", tokens), prompt_tokens=prompt_tokens)
        assert chosen(router, request, {"a": 1, "b": 0}) == replica


def test_affinity_forgets_a_replica_that_is_gone() -> None:
    router = PrefixAffinity[str]()
    assert chosen(router, with_prefix(("x", 80)), {"a": 0, "b": 1}) == "a"
    assert chosen(router, with_prefix(("x", 80)), {"b": 1, "c": 0}) == "c"


@pytest.mark.parametrize("name", ["round-robin", "least-loaded", "prefix-affinity"])
def test_the_same_calls_give_the_same_choices(name: RouterName) -> None:
    def choices() -> list[int]:
        router, draw = make_router(name), random.Random(0)
        return [
            chosen(
                router,
                RoutedRequest(draw.randrange(1, 200), ((draw.randrange(9), 50),)),
                {replica: draw.randrange(20) for replica in range(4)},
            )
            for _ in range(300)
        ]

    assert choices() == choices()
    assert set(choices()) == {0, 1, 2, 3}


def test_every_choice_has_its_reason() -> None:
    """What the page shows is what decided."""
    loads = {"a": 1, "b": 0}
    assert RoundRobin[str]().route(REQUEST, loads) == ("a", RouteReason.TURN, 0)
    assert LeastLoaded[str]().route(REQUEST, loads) == ("b", RouteReason.LEAST_LOADED, 0)
    router, request = PrefixAffinity[str](), with_prefix(("x", 80))
    assert router.route(request, loads) == ("b", RouteReason.NO_PREFIX, 0)
    assert router.route(request, {"a": 0, "b": 1}) == ("b", RouteReason.PREFIX, 80)
    overloaded = {"a": 0, "b": MAX_IMBALANCE + 1}
    assert router.route(request, overloaded) == ("a", RouteReason.OVERLOADED, 80)


def test_a_prefix_counts_no_further_than_the_prompt() -> None:
    router = PrefixAffinity[str]()
    router.route(with_prefix(("x", 150)), {"a": 0, "b": 0})
    assert router.route(with_prefix(("x", 150)), {"a": 0, "b": 0}).prefix_tokens == 100
