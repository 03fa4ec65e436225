"""Replicas that die: their requests go on in others, whatever dies when."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.simulator.fleets import make_executor
from twostroke.core.config import SchedulerConfig
from twostroke.routing.routers import make_router
from twostroke.simulator.deployment.fleet_options import ReplicaDeath
from twostroke.simulator.fleet.fleet import Fleet
from twostroke.simulator.fleet.places import ReplicaPlaces
from twostroke.simulator.fleet.replica import Replica
from twostroke.simulator.fleet.result import FleetResult
from twostroke.simulator.workloads.base import OpenLoop, RequestSpec

CONFIG = SchedulerConfig(max_num_seqs=4)


def run_places(
    requests: list[RequestSpec],
    failures: list[ReplicaDeath],
    replicas: int = 3,
    *,
    jump: bool = True,
    slow_start: float = 0.0,
) -> tuple[FleetResult, ReplicaPlaces]:
    places = ReplicaPlaces(
        lambda _: Replica(make_executor(num_blocks=64), CONFIG, jump=jump),
        ["both"] * replicas,
        failures,
        slow_start,
    )
    result = Fleet(places, make_router("least-loaded"), OpenLoop(requests), 100_000).run()
    for replica in places.replicas:
        replica.kv.check_integrity()
    return result, places


def crowd(count: int) -> list[RequestSpec]:
    return [RequestSpec(number, 0.05 * number, 20, 1 + number % 40) for number in range(count)]


def test_tokens_so_far_are_computed_again_elsewhere() -> None:
    request = [RequestSpec(0, 0.0, 20, 60)]
    calm, _ = run_places(request, [])
    result, places = run_places(request, [ReplicaDeath(0, 0.2)])
    (before,), (after,) = calm.requests, result.requests
    assert (after.output_tokens, result.num_moved) == (60, 1)
    assert after.first_token == before.first_token
    assert (before.replica, after.replica) == (0, 1)
    died, heir = places.replicas[0].log, places.replicas[1].log
    so_far = sum(died.new_tokens)
    assert 1 < so_far < 60
    assert heir.prefill_tokens[0] == 20 + so_far
    assert heir.start[0] >= 0.2
    # A step for the tokens so far, instead of one for the next.
    assert before.finish < after.finish < before.finish + 0.02


def test_a_fresh_replica_takes_the_place() -> None:
    result, _ = run_places(crowd(60), [ReplicaDeath(1, 0.5, 0.5)])
    assert len(result.logs) == 4
    assert result.logs[1].end[-1] < 0.6
    assert result.logs[3].start[0] >= 1.0
    assert result.num_moved > 0
    assert len(result.requests) == 60


def test_a_fresh_replica_starts_slowly() -> None:
    """It gets few requests at first, and as many as before once its ramp is over."""
    before, after = [0, 0], [0, 0]
    for run, seconds in enumerate((0.0, 1.0)):
        deaths = [ReplicaDeath(1, 0.5, 0.5)]
        result, _ = run_places(crowd(60), deaths, slow_start=seconds)
        arrivals = [each.arrival for each in result.requests if each.replica == 3]
        before[run] = sum(arrival < 2.0 for arrival in arrivals)
        after[run] = len(arrivals) - before[run]
    assert 0 < before[1] < before[0] / 2
    assert after[1] >= after[0] - 1


def test_without_any_replica_requests_wait_for_one() -> None:
    result, _ = run_places(crowd(10), [ReplicaDeath(0, 0.1, 4.0)], replicas=1)
    assert len(result.requests) == 10
    assert max(request.finish for request in result.requests) > 4.1
    lost, _ = run_places(crowd(10), [ReplicaDeath(0, 0.1)], replicas=1)
    assert len(lost.requests) < 10


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.floats(0, 3), st.floats(0.01, 1)), min_size=1, max_size=6
    )
)
def test_every_request_gets_all_its_tokens(drawn: list[tuple[int, float, float]]) -> None:
    failures, away = [], {0: 0.0, 1: 0.0, 2: 0.0}
    for place, at, lasts in sorted(drawn, key=lambda each: each[1]):
        if at >= away[place]:
            failures.append(ReplicaDeath(place, at, lasts))
            away[place] = at + lasts
    requests = crowd(60)
    result, places = run_places(requests, failures)
    single, _ = run_places(requests, failures, jump=False)
    assert result.requests == single.requests
    assert [each.output_tokens for each in result.requests] == [
        each.output_tokens for each in requests
    ]
    tokens = sum(sum(replica.log.new_tokens) for replica in places.replicas)
    assert tokens == sum(request.output_tokens for request in requests)
    gaps = sum(sum(log.gaps) + len(log.other_gaps) for log in result.logs)
    assert gaps == tokens - len(requests)
