"""Routers choose by what they see, keep no replica that is gone, and decide the same each time."""

from __future__ import annotations

import random
from collections.abc import Hashable, Mapping
from typing import TypeVar

import pytest

from twostroke.observability.routes import RouteReason
from twostroke.routing.loads import ReplicaLoad
from twostroke.routing.routers import (
    MAX_IMBALANCE,
    MIN_PREFIX_SHARE,
    KVOccupancy,
    LeastLoaded,
    PrefixAffinity,
    RoundRobin,
    RoutedRequest,
    Router,
    RouterName,
    make_router,
)

REQUEST = RoutedRequest(100)
T = TypeVar("T", bound=Hashable)
# KV tokens of the replicas of these tests.
CAPACITY = 1000


def busy(requests: Mapping[T, int]) -> dict[T, ReplicaLoad]:
    return {replica: ReplicaLoad(number) for replica, number in requests.items()}


def holding(requests: int, kv_tokens: int, share: float = 1.0) -> ReplicaLoad:
    """A replica whose requests hold, or wait for, so many tokens."""
    return ReplicaLoad(requests, share, lambda tokens: (kv_tokens + tokens) / CAPACITY)


def chosen(router: Router[T], request: RoutedRequest, requests: Mapping[T, int]) -> T:
    return router.route(request, busy(requests)).replica


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


@pytest.mark.parametrize("name", ["round-robin", "least-loaded", "prefix-affinity", "kv-occupancy"])
def test_the_same_calls_give_the_same_choices(name: RouterName) -> None:
    def choices() -> list[int]:
        router, draw = make_router(name), random.Random(0)
        return [
            router.route(
                RoutedRequest(draw.randrange(1, 200), ((draw.randrange(9), 50),)),
                {replica: drawn_load(draw) for replica in range(4)},
            ).replica
            for _ in range(300)
        ]

    def drawn_load(draw: random.Random) -> ReplicaLoad:
        return holding(draw.randrange(20), draw.randrange(900), draw.choice((0.1, 0.5, 1.0)))

    assert choices() == choices()
    assert set(choices()) == {0, 1, 2, 3}


def test_every_choice_has_its_reason() -> None:
    """What the page shows is what decided."""
    loads = busy({"a": 1, "b": 0})
    assert RoundRobin[str]().route(REQUEST, loads) == ("a", RouteReason.TURN, 0)
    assert LeastLoaded[str]().route(REQUEST, loads) == ("b", RouteReason.LEAST_LOADED, 0)
    router, request = PrefixAffinity[str](), with_prefix(("x", 80))
    assert router.route(request, loads) == ("b", RouteReason.NO_PREFIX, 0)
    assert router.route(request, busy({"a": 0, "b": 1})) == ("b", RouteReason.PREFIX, 80)
    overloaded = busy({"a": 0, "b": MAX_IMBALANCE + 1})
    assert router.route(request, overloaded) == ("a", RouteReason.OVERLOADED, 80)


def test_a_prefix_counts_no_further_than_the_prompt() -> None:
    router = PrefixAffinity[str]()
    loads = busy({"a": 0, "b": 0})
    router.route(with_prefix(("x", 150)), loads)
    assert router.route(with_prefix(("x", 150)), loads).prefix_tokens == 100


def test_occupancy_counts_memory_not_requests() -> None:
    """One that has few long requests is fuller than one that has many short ones."""
    loads = {"a": holding(2, 700), "b": holding(9, 300), "c": holding(1, 800)}
    route = KVOccupancy[str]().route(REQUEST, loads)
    assert route == ("b", RouteReason.LEAST_FULL, 0)


def test_of_equally_full_ones_the_least_loaded_is_taken() -> None:
    loads = {"a": holding(3, 300), "b": holding(2, 300), "c": holding(2, 300)}
    assert KVOccupancy[str]().route(REQUEST, loads).replica == "b"


def test_occupancy_counts_the_prompt_where_replicas_differ() -> None:
    """A long prompt fills a small replica further than a large one."""
    small, large = ReplicaLoad(1, 1.0, lambda n: n / 200), ReplicaLoad(1, 1.0, lambda n: 0.3)
    router, loads = KVOccupancy[str](), {"small": small, "large": large}
    assert router.route(RoutedRequest(50), loads).replica == "small"
    assert router.route(RoutedRequest(100), loads).replica == "large"


def test_no_other_router_asks_how_full_a_replica_is() -> None:
    def refuse(tokens: int) -> float:
        raise AssertionError("it was asked")

    loads = {replica: ReplicaLoad(0, 1.0, refuse) for replica in "ab"}
    routers = RoundRobin[str](), LeastLoaded[str](), PrefixAffinity[str]()
    assert {router.route(with_prefix(("x", 80)), loads).replica for router in routers} == {"a"}


@pytest.mark.parametrize("name", ["round-robin", "least-loaded", "prefix-affinity", "kv-occupancy"])
@pytest.mark.parametrize("share", [0.1, 0.25, 0.5])
def test_one_that_has_come_gets_its_share_of_what_others_get(
    name: RouterName, share: float
) -> None:
    """Requests that do not end pile up in that ratio, whatever the policy."""
    router, requests = make_router(name), [0, 0, 0]
    for _ in range(2000):
        loads = {
            index: holding(requests[index], 10 * requests[index], share if index == 2 else 1.0)
            for index in range(3)
        }
        requests[router.route(RoutedRequest(10), loads).replica] += 1
    assert abs(requests[0] - requests[1]) <= 1
    assert requests[2] == pytest.approx(share * requests[0], abs=1.5)


def test_where_all_have_just_come_requests_are_spread_evenly() -> None:
    for name in ("round-robin", "least-loaded"):
        router, requests = make_router(name), [0, 0, 0]
        for _ in range(30):
            loads = {index: ReplicaLoad(requests[index], 0.1) for index in range(3)}
            requests[router.route(REQUEST, loads).replica] += 1
        assert requests == [10, 10, 10]


def test_round_robin_keeps_nothing_of_those_that_are_gone() -> None:
    router = RoundRobin[int]()
    for number in range(100):
        router.route(REQUEST, {number: ReplicaLoad(0, 0.3), -1: ReplicaLoad(0)})
    assert len(router._due) <= 1
