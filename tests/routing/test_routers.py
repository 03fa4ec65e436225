"""Routers choose by what they see, keep no replica that is gone, and decide the same each time."""

from __future__ import annotations

import random

import pytest

from twostroke.routing.routers import (
    MAX_IMBALANCE,
    MIN_PREFIX_SHARE,
    LeastLoaded,
    PrefixAffinity,
    RoundRobin,
    RoutedRequest,
    RouterName,
    make_router,
)

REQUEST = RoutedRequest(100)


def with_prefix(*segments: tuple[str, int], prompt_tokens: int = 100) -> RoutedRequest:
    return RoutedRequest(prompt_tokens, segments)


def test_round_robin_takes_one_after_the_other_whatever_their_load() -> None:
    router = RoundRobin[str]()
    loads = {"a": 9, "b": 0, "c": 5}
    assert [router.route(REQUEST, loads) for _ in range(7)] == [*"abcabca"]


def test_round_robin_goes_on_when_replicas_come_and_go() -> None:
    router = RoundRobin[str]()
    assert [router.route(REQUEST, dict.fromkeys("abc", 0)) for _ in range(2)] == ["a", "b"]
    assert router.route(REQUEST, {"a": 0}) == "a"
    assert router.route(REQUEST, {"a": 0, "d": 0}) == "a"
    assert router.route(REQUEST, {"a": 0, "d": 0}) == "d"


def test_least_loaded_takes_the_first_of_several() -> None:
    assert LeastLoaded[str]().route(REQUEST, {"a": 3, "b": 1, "c": 1}) == "b"


def test_affinity_follows_a_prefix() -> None:
    router = PrefixAffinity[str]()
    assert router.route(with_prefix(("x", 80)), {"a": 1, "b": 0}) == "b"
    assert router.route(with_prefix(("x", 80)), {"a": 0, "b": 1}) == "b"
    assert router.route(with_prefix(("y", 80)), {"a": 0, "b": 1}) == "a"


def test_affinity_follows_the_longest_known_prefix() -> None:
    router = PrefixAffinity[str]()
    router.route(with_prefix(("system", 40)), {"a": 0, "b": 1})
    router.route(with_prefix(("chat", 90)), {"a": 1, "b": 0})
    request = with_prefix(("system", 40), ("chat", 90), ("turn", 20), prompt_tokens=130)
    assert router.route(request, {"a": 0, "b": 0}) == "b"


def test_affinity_moves_a_prefix_with_the_request() -> None:
    """After an overload the prefix is where it was sent last."""
    router = PrefixAffinity[str]()
    request = with_prefix(("x", 80))
    assert router.route(request, {"a": 0, "b": 1}) == "a"
    assert router.route(request, {"a": MAX_IMBALANCE, "b": 0}) == "a"
    assert router.route(request, {"a": MAX_IMBALANCE + 1, "b": 0}) == "b"
    assert router.route(request, {"a": 0, "b": 1}) == "b"


def test_affinity_ignores_a_short_prefix() -> None:
    tokens = 10
    for prompt_tokens, replica in ((33, "a"), (34, "b")):
        router = PrefixAffinity[str]()
        router.route(with_prefix(("system", tokens), prompt_tokens=prompt_tokens), {"a": 0, "b": 1})
        assert (tokens >= MIN_PREFIX_SHARE * prompt_tokens) is (replica == "a")
        request = with_prefix(("system", tokens), prompt_tokens=prompt_tokens)
        assert router.route(request, {"a": 1, "b": 0}) == replica


def test_affinity_forgets_a_replica_that_is_gone() -> None:
    router = PrefixAffinity[str]()
    assert router.route(with_prefix(("x", 80)), {"a": 0, "b": 1}) == "a"
    assert router.route(with_prefix(("x", 80)), {"b": 1, "c": 0}) == "c"


@pytest.mark.parametrize("name", ["round-robin", "least-loaded", "prefix-affinity"])
def test_the_same_calls_give_the_same_choices(name: RouterName) -> None:
    def choices() -> list[int]:
        router, draw = make_router(name), random.Random(0)
        return [
            router.route(
                RoutedRequest(draw.randrange(1, 200), ((draw.randrange(9), 50),)),
                {replica: draw.randrange(20) for replica in range(4)},
            )
            for _ in range(300)
        ]

    assert choices() == choices()
    assert set(choices()) == {0, 1, 2, 3}
