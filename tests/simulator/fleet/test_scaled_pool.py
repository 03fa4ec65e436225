"""Protects: replicas that come and go serve every request, and are paid for no longer."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.simulator.fleets import make_executor, run_fleet
from twostroke.core.config import SchedulerConfig
from twostroke.core.sampling_params import SamplingParams
from twostroke.observability.routes import RouteEvent
from twostroke.routing.autoscaler import Autoscaler, AutoscalerOptions, ReplicaReading
from twostroke.routing.routers import make_router
from twostroke.routing.slow_start import ramped_share
from twostroke.simulator.fleet.fleet import Fleet
from twostroke.simulator.fleet.replica import Replica
from twostroke.simulator.fleet.requests import make_request
from twostroke.simulator.fleet.result import FleetResult
from twostroke.simulator.fleet.scaled_pool import ScaledPool
from twostroke.simulator.workloads.base import OpenLoop, RequestSpec

START = 2.0
PARAMS = SamplingParams(temperature=0, max_tokens=None, ignore_eos=True, detokenize=False)
CONFIG = SchedulerConfig(max_num_seqs=4)
OPTIONS = AutoscalerOptions(
    autoscale="requests", autoscale_interval=1.0, autoscale_target=30.0, max_replicas=2
)


def make(index: int) -> Replica:
    return Replica(make_executor(num_blocks=64), CONFIG)


class Counted(ScaledPool):
    """Checks after each decision that there are as many as were wanted."""

    def change(self, num_held: int) -> tuple[int, ...]:
        before = len(self.events)
        lost = super().change(num_held)
        if len(self.events) > before:
            there = [member for member in self._members if not member.draining]
            assert len(there) == self.events[-1].wanted
        return lost


def scaled(
    requests: list[RequestSpec], replicas: int = 1, **fields: Any
) -> tuple[FleetResult, ScaledPool, list[RouteEvent]]:
    own = {"autoscale": "kv", "autoscale_interval": 1.0, "scale_down_after": 5.0, **fields}
    pool = Counted(make, AutoscalerOptions(**own), replicas, START)
    routes: list[RouteEvent] = []
    fleet = Fleet(
        pool, make_router("least-loaded"), OpenLoop(requests), 100_000, on_route=routes.append
    )
    return fleet.run(), pool, routes


def test_a_replica_that_has_started_gets_a_growing_part() -> None:
    """A part of what the other has, of the moment; where without a ramp it gets all at first."""
    ramp, routes = 4.0, list[RouteEvent]()
    pool = ScaledPool(make, OPTIONS, 1, START, ramp)
    requests = flood(400, 0.02, output=200)
    Fleet(
        pool, make_router("least-loaded"), OpenLoop(requests), 100_000, on_route=routes.append
    ).run()
    (ready,) = {each.time + START for each in pool.events}
    choices = [route for route in routes if ready <= route.time < ready + ramp]
    for route in choices:
        share = ramped_share(route.time - ready, ramp)
        load = {route.replica: route.load}
        load[1 - route.replica] = route.least_load + route.most_load - route.load
        assert (route.replica == 1) is ((load[1] + 1) / share < load[0] + 1)
    assert 0 < sum(route.replica for route in choices) < len(choices)


def flood(count: int, every: float, prompt: int = 20, output: int = 60) -> list[RequestSpec]:
    return [RequestSpec(number, every * number, prompt, output) for number in range(count)]


@pytest.mark.parametrize("replicas", [1, 3])
def test_a_pool_that_may_not_change_is_a_fixed_one(replicas: int) -> None:
    requests = flood(60, 0.02)
    result, pool, _ = scaled(requests, replicas, min_replicas=replicas, max_replicas=replicas)
    fixed = run_fleet(
        OpenLoop(requests), CONFIG, replicas=replicas, router="least-loaded", num_blocks=64
    )
    assert result.requests == fixed.requests
    assert not pool.events and result.replica_seconds == pytest.approx(fixed.replica_seconds)


def test_it_grows_under_load_and_shrinks_after_it() -> None:
    load = flood(200, 0.05)
    after = [RequestSpec(200 + n, 10.0 + n, 20, 20) for n in range(30)]
    result, pool, routes = scaled([*load, *after], max_replicas=4)
    assert len(result.requests) == 230
    assert result.replicas_most == len(pool.replicas) == 4, "none is ended too early"
    assert pool.events[-1].wanted == 1
    assert {route.replica for route in routes[:5]} == {0}
    assert routes[-1].replica in range(4), "the one that was left"
    duration = max(request.finish for request in result.requests)
    assert duration < result.replica_seconds < 4 * duration


def test_none_gets_a_request_before_it_is_ready() -> None:
    _, pool, routes = scaled(flood(100, 0.05), max_replicas=3)
    first = pool.events[0]
    assert first.wanted > first.before == 1
    late = [route.time for route in routes if route.replica > 0]
    assert late and min(late) >= first.time + START


def test_scaled_to_zero_a_request_waits_for_a_start() -> None:
    requests = [
        RequestSpec(0, 0.5, 20, 4),
        RequestSpec(1, 30.0, 20, 4),
        RequestSpec(2, 30.1, 20, 4),
    ]
    result, pool, routes = scaled(requests, min_replicas=0)
    assert [request.number for request in result.requests] == [0, 1, 2]
    assert [event.wanted for event in pool.events] == [0, 1]
    assert [route.replica for route in routes] == [0, 1, 1]
    assert START < result.requests[1].ttft < START + 0.1
    assert START - 0.1 < result.requests[2].ttft < START + 0.1
    assert result.replica_seconds < 15.0


class Scripted(Autoscaler):
    """Wants what it is told to want."""

    def __init__(self, *wanted: int) -> None:
        super().__init__(AutoscalerOptions())
        self._script = [*wanted]

    def decide(self, *told: object, **more: object) -> int:
        return self._script.pop(0)


def test_a_replica_that_drains_goes_on_where_one_more_is_wanted() -> None:
    options = AutoscalerOptions(autoscale="kv", autoscale_interval=1.0)
    pool = ScaledPool(make, options, 2, START)
    pool._autoscaler = Scripted(1, 2, 1, 1)
    info = pool.replicas[0].executor.info
    for number, output in enumerate((40, 20)):
        spec = RequestSpec(number, 0.0, 20, output)
        pool.replicas[number].add(make_request(spec, PARAMS, info.block_size, number, 1))
    pool.change(0)
    (kept,) = pool.loads(1.0)
    pool.change(0)
    assert [*pool.loads(2.0)] == [0, 1] and len(pool.replicas) == 2, "nothing was started"
    pool.change(0)
    (again,) = pool.loads(3.0)
    assert again == kept
    for replica in pool.replicas:
        while replica.has_work():
            replica.run(100.0)
    drained = pool.replicas[1 - kept].clock.now
    pool.change(0)
    assert pool.replica_seconds(10.0) == pytest.approx(10.0 + drained)


class Noted(Scripted):
    """Notes what it is told."""

    def __init__(self, *wanted: int) -> None:
        super().__init__(*wanted)
        self.readings: list[list[ReplicaReading]] = []

    def decide(self, *told: object, **more: object) -> int:
        self.readings.append([*told[1]])  # type: ignore[misc]
        return super().decide(*told, **more)


@pytest.mark.parametrize("interval", [0.1, 1.0])
def test_one_that_always_works_is_busy_all_the_time_also_after_it_drained(interval: float) -> None:
    options = AutoscalerOptions(autoscale="kv", autoscale_interval=interval)
    pool = ScaledPool(make, options, 2, START)
    pool._autoscaler = noted = Noted(2, 1, 1, 2, 2, 2)
    info = pool.replicas[0].executor.info
    for number in range(200):
        spec = RequestSpec(number, 0.0, 60, 40)
        request = make_request(spec, PARAMS, info.block_size, number, 1)
        pool.replicas[number % 2].add(request)
    for _ in range(6):
        for replica in pool.replicas:
            while replica.clock.now < pool.next_change:
                replica.run(pool.next_change)
        pool.change(0)
    assert all(replica.has_work() for replica in pool.replicas)
    busy = [reading.busy for readings in noted.readings for reading in readings]
    assert len(busy) == 2 + 2 + 1 + 1 + 2 + 2 and busy == pytest.approx([1.0] * 10)
    predicted = [reading.ttft for readings in noted.readings for reading in readings]
    assert any(predicted) and 0.0 not in predicted, "prompts wait all the time"


def test_what_is_ended_after_the_last_step_is_paid_for_until_that() -> None:
    too_long = RequestSpec(1, 50.0, 90_000, 60_000)
    result, _, _ = scaled([RequestSpec(0, 0.0, 20, 4), too_long], 3, max_replicas=3)
    assert result.refused == [1]
    end = result.requests[0].finish
    assert result.replica_seconds == pytest.approx(3 * end)


def test_those_that_are_there_stay_while_more_start() -> None:
    pool = ScaledPool(make, AutoscalerOptions(autoscale="kv", autoscale_interval=1.0), 2, START)
    pool._autoscaler = Scripted(4, 5, 2)
    pool.change(0)
    assert [*pool.loads(1.0)] == [0, 1]
    pool.change(0)
    assert [*pool.loads(2.0)] == [0, 1]
    assert pool.next_change == 3.0 == 1.0 + START
    pool.change(0)
    assert len(pool.loads(3.0)) == 2
    assert pool.most == 5


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(st.floats(0, 3), st.integers(1, 60), st.integers(1, 80)), min_size=1, max_size=60
    ),
    st.sampled_from(["kv", "utilisation", "requests"]),
    st.integers(0, 2),
)
def test_every_request_ends_once_whatever_comes_and_goes(
    rows: list[tuple[float, int, int]], signal: str, least: int
) -> None:
    requests, now = [], 0.0
    for number, (gap, prompt, output) in enumerate(rows):
        now += gap
        requests.append(RequestSpec(number, now, prompt, output))
    result, pool, routes = scaled(
        requests,
        autoscale=signal,
        min_replicas=least,
        max_replicas=4,
        autoscale_target={"kv": 0.6, "utilisation": 0.7, "requests": 3.0}[signal],
    )
    assert sorted(request.number for request in result.requests) == list(range(len(rows)))
    assert len(routes) == len(rows)
    assert result.replicas_most <= 4 + 4, "draining ones are there, too"
    end = max(log.end[-1] for log in result.logs if len(log))
    assert result.replica_seconds <= result.replicas_most * end + 1e-9
    for replica in pool.replicas:
        assert not replica.has_work()
        replica.kv.check_integrity()
