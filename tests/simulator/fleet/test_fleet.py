"""Which replica gets which request, and in which order everything happens."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulator.fleets import make_fleet, run_fleet, specs
from twostroke.core.config import SchedulerConfig
from twostroke.routing.routers import MAX_IMBALANCE, RouterName
from twostroke.simulator.workloads.arrivals import ClosedLoop
from twostroke.simulator.workloads.base import OpenLoop, RequestSpec
from twostroke.simulator.workloads.sessions import Sessions, SessionTurn


@pytest.mark.parametrize(
    "router", ["round-robin", "least-loaded", "prefix-affinity", "kv-occupancy"]
)
def test_routers_spread_equal_requests_evenly(router: RouterName) -> None:
    workload = specs(*((0.001 * number, 10, 20) for number in range(12)))
    result = run_fleet(workload, replicas=3, router=router)
    assert Counter(request.replica for request in result.requests) == {0: 4, 1: 4, 2: 4}


def test_least_loaded_sees_who_is_busy_at_the_moment_of_arrival() -> None:
    """A step that is under way at the arrival counts the requests that it ends as still there."""
    workload = specs((0.0, 8, 100), (0.001, 8, 1), (0.002, 8, 1), (5.0, 8, 1))
    placed = [
        request.replica
        for request in run_fleet(workload, replicas=2, router="least-loaded").requests
    ]
    # Replica 1 still runs request 1 when request 2 comes; all have ended before the last.
    assert placed == [0, 1, 0, 0]


def test_occupancy_keeps_short_requests_away_from_long_ones() -> None:
    """Each of the two long prompts has a replica; by requests alone they would meet."""
    rows = ((0.0, 200, 40), (0.001, 8, 400), (0.002, 200, 40), (0.003, 8, 40), (0.004, 8, 40))
    placed = {}
    for router in ("least-loaded", "kv-occupancy"):
        result = run_fleet(specs(*rows), replicas=2, router=router, num_blocks=200)
        placed[router] = [request.replica for request in result.requests]
    assert placed["least-loaded"] == [0, 1, 0, 1, 0]
    assert placed["kv-occupancy"] == [0, 1, 1, 0, 0]


def test_affinity_follows_the_prefix_until_its_replica_is_overloaded() -> None:
    shared = [RequestSpec(number, 0.0001 * number, 40, 200, ((7, 40),)) for number in range(30)]
    result = run_fleet(OpenLoop(shared), replicas=2, router="prefix-affinity", num_blocks=4000)
    placed = [request.replica for request in result.requests]
    assert placed[: MAX_IMBALANCE + 1] == [0] * (MAX_IMBALANCE + 1)
    assert set(placed) == {0, 1}
    assert result.prefix_hits > 0


def test_a_short_common_beginning_ties_no_request_to_a_replica() -> None:
    """A system prompt that all share must not gather new sessions where the last one went."""
    requests = [
        RequestSpec(number, 0.0001 * number, 100, 200, ((-1, 20), (number, 300)))
        for number in range(12)
    ]
    result = run_fleet(OpenLoop(requests), replicas=3, router="prefix-affinity", num_blocks=4000)
    assert Counter(request.replica for request in result.requests) == {0: 4, 1: 4, 2: 4}


def test_a_long_common_beginning_is_followed() -> None:
    """Whatever a request's own part is, and however long its answer."""
    requests = [
        RequestSpec(number, 0.01 * number, 100, 200, ((-1, 60), (number, 300)))
        for number in range(6)
    ]
    result = run_fleet(OpenLoop(requests), replicas=3, router="prefix-affinity", num_blocks=4000)
    assert {request.replica for request in result.requests} == {0}


def test_affinity_raises_the_hit_rate_of_sessions() -> None:
    turns = [[SessionTurn(40, 20)] * 4 for _ in range(9)]
    rates = {}
    for router in ("round-robin", "prefix-affinity"):
        sessions = Sessions(turns, [0.05 * number for number in range(9)], 0, 0.2)
        result = run_fleet(sessions, replicas=2, router=router, num_blocks=4000)
        rates[router] = result.prefix_hits / result.prefix_queries
    assert rates["prefix-affinity"] > rates["round-robin"] + 0.1


def test_what_never_fits_is_refused_and_the_rest_goes_on() -> None:
    workload = specs((0.0, 8, 4), (0.0, 500, 4), (0.0, 90, 20), (0.1, 8, 4))
    result = run_fleet(workload, num_blocks=64, max_model_len=100)
    assert result.refused == [1, 2]
    assert [request.number for request in result.requests] == [0, 3]


def test_a_refused_request_does_not_stop_a_closed_loop() -> None:
    loop = ClosedLoop(specs((0.0, 500, 4), (0.0, 8, 4), (0.0, 8, 4)).specs, concurrency=1)
    assert [request.number for request in run_fleet(loop, num_blocks=64).requests] == [1, 2]


def test_a_closed_loop_keeps_its_concurrency() -> None:
    loop = ClosedLoop(specs(*((0.0, 8, 10) for _ in range(9))).specs, concurrency=3)
    result = run_fleet(loop, num_blocks=64)
    moments = [(request.arrival, 1) for request in result.requests]
    moments += [(request.finish, -1) for request in result.requests]
    under_way = most = 0
    for _, change in sorted(moments):
        under_way += change
        most = max(most, under_way)
    assert most == 3
    assert len(result.requests) == 9


def test_turns_of_a_session_follow_each_other_and_hit_the_cache() -> None:
    result = run_fleet(
        Sessions([[SessionTurn(20, 10)] * 3], [1.0], prefix_len=8, think_time=0.5), num_blocks=400
    )
    first, second, third = result.requests
    assert (first.prompt_tokens, second.prompt_tokens, third.prompt_tokens) == (28, 58, 88)
    assert first.arrival == 1.0
    assert first.finish < second.arrival < second.finish < third.arrival
    # All but what lies past the last full block, whose last token was never computed.
    assert (first.cached_tokens, second.cached_tokens, third.cached_tokens) == (0, 36, 64)


def test_ctrl_c_keeps_what_has_finished() -> None:
    def interrupt(ended: int) -> None:
        raise KeyboardInterrupt

    fleet, _ = make_fleet(specs((0.0, 8, 4), (0.0, 8, 40)), SchedulerConfig())
    result = fleet.run(interrupt)
    assert result.interrupted
    assert [request.number for request in result.requests] == [0]
