"""Protects: affinity that follows caches and sessions, and a memory of prefixes that is bounded."""

from __future__ import annotations

from collections.abc import Mapping

from tests.routing.test_routers import busy, chosen, with_prefix
from twostroke.observability.routes import RouteReason
from twostroke.routing.affinity import MAX_IMBALANCE, KVAware, PrefixAffinity, SessionAffinity
from twostroke.routing.routers import RoutedRequest


def cached(tokens: Mapping[str, int], *segments: tuple[str, int]) -> RoutedRequest:
    """A prompt of 100 tokens, of which replicas hold so many."""
    return RoutedRequest(100, segments, num_cached=lambda replica: tokens.get(replica, 0))


def of_session(name: str | None) -> RoutedRequest:
    return RoutedRequest(100, session=name)


def test_what_is_cached_counts_more_than_where_it_was_sent() -> None:
    router, sent = KVAware[str](), ("x", 80)
    loads = busy({"a": 0, "b": 0})
    assert router.route(cached({}, sent), loads) == ("a", RouteReason.NO_PREFIX, 0)
    # It is being computed there, and in no cache yet.
    assert router.route(cached({}, sent), loads) == ("a", RouteReason.PREFIX, 80)
    assert router.route(cached({"b": 64}, sent), loads) == ("b", RouteReason.CACHED, 64)
    assert router.route(cached({"a": 80, "b": 64}, sent), loads) == ("a", RouteReason.CACHED, 80)


def test_of_equal_caches_the_least_loaded_is_taken() -> None:
    router, request = KVAware[str](), cached({"a": 64, "b": 64})
    assert chosen(router, request, {"a": 2, "b": 1}) == "b"
    assert chosen(router, request, {"a": 1, "b": 1}) == "a"


def test_a_short_or_busy_cache_is_not_followed() -> None:
    router = KVAware[str]()
    assert chosen(router, cached({"b": 29}), {"a": 0, "b": 0}) == "a"
    assert chosen(router, cached({"b": 30}), {"a": 0, "b": 0}) == "b"
    route = router.route(cached({"b": 30}), busy({"a": 0, "b": MAX_IMBALANCE + 1}))
    assert route == ("a", RouteReason.OVERLOADED, 30)


def test_what_was_not_asked_for_longest_is_forgotten_first() -> None:
    """A router that runs for months must not grow; the end of a prefix goes before its start."""
    router = PrefixAffinity[str](max_segments=3)
    chosen(router, with_prefix(("start", 60), ("end", 40)), {"a": 0, "b": 1})
    chosen(router, with_prefix(("x", 60), ("y", 40)), {"a": 1, "b": 0})
    long = with_prefix(("start", 60), ("end", 40))
    assert router.route(long, busy({"a": 0, "b": 0})) == ("a", RouteReason.PREFIX, 60)
    for number in range(100):
        chosen(router, with_prefix((f"{number}", 80)), {"a": 0, "b": 0})
    assert len(router._replica_of) == 3


def test_a_session_stays_where_it_is() -> None:
    """Whatever the loads, in every router alike, and also when another replica leaves."""
    sessions = [f"user {number}" for number in range(300)]
    loads = {"a": 5, "b": 0, "c": 99}
    first = {name: chosen(SessionAffinity[str](), of_session(name), loads) for name in sessions}
    counts = [list(first.values()).count(replica) for replica in "abc"]
    assert min(counts) > 70, "they are spread"
    without = {"a": 0, "b": 0}
    for name, replica in first.items():
        moved = chosen(SessionAffinity[str](), of_session(name), without)
        assert moved == replica if replica != "c" else moved in "ab"


def test_without_a_session_the_least_loaded_is_taken() -> None:
    route = SessionAffinity[str]().route(of_session(None), busy({"a": 2, "b": 1}))
    assert route == ("b", RouteReason.NO_SESSION, 0)
