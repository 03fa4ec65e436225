"""Protects: a fleet that keeps count of its requests routes as one that counts them each time."""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import partial

import pytest

from tests.simulator.fleets import make_fleet
from twostroke.core.config import SchedulerConfig
from twostroke.routing.loads import ReplicaLoad
from twostroke.routing.make_router import make_router
from twostroke.routing.routers import Route, RoutedRequest, Router, RouterName
from twostroke.simulator.fleet.counts import RequestCounts
from twostroke.simulator.fleet.loads import ReplicaLoads
from twostroke.simulator.fleet.replica import Replica
from twostroke.simulator.workloads.arrivals import ClosedLoop
from twostroke.simulator.workloads.base import OpenLoop, RequestSpec, Workload


class Checked:
    """A router that counts every replica's requests itself, and compares."""

    def __init__(self, router: Router[int], replicas: list[Replica]) -> None:
        self._router, self._replicas = router, replicas
        self.num_ties = self.num_checked = 0

    def route(self, request: RoutedRequest, loads: Mapping[int, ReplicaLoad]) -> Route[int]:
        assert isinstance(loads, ReplicaLoads)
        counted = [each.num_unfinished(loads._now) for each in self._replicas]
        assert [loads[index].requests for index in loads] == counted
        assert loads.least() == counted.index(min(counted))
        assert list(loads) == list(range(len(counted))) and len(counted) not in loads
        self.num_ties += counted.count(min(counted)) > 1
        self.num_checked += 1
        return self._router.route(request, loads)


def requests(drawn: random.Random) -> list[RequestSpec]:
    return [
        RequestSpec(number, 0.01 * drawn.random() * number, drawn.randint(1, 60), 1 + number % 40)
        for number in range(120)
    ]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("router", ["least-loaded", "prefix-affinity", "round-robin"])
@pytest.mark.parametrize("closed", [False, True])
def test_counts_are_those_of_the_replicas(router: RouterName, seed: int, closed: bool) -> None:
    specs = sorted(requests(random.Random(seed)), key=lambda spec: spec.arrival)
    workload: Workload = ClosedLoop(specs, 9, 0.05) if closed else OpenLoop(specs)
    config = SchedulerConfig(max_num_seqs=4)
    fleet, replicas = make_fleet(workload, config, replicas=5, router=router)
    fleet._router = checked = Checked(make_router(router), replicas)
    assert len(fleet.run().requests) == len(specs)
    assert checked.num_checked == len(specs) and 0 < checked.num_ties < len(specs)


def test_what_ends_later_is_counted_until_then() -> None:
    counts = RequestCounts(3)
    note = partial(counts.note, 1)
    note(2, ())
    counts.note(0, 1, [])
    note(0, [5.0, 3.0])
    assert [counts[index] for index in range(3)] == [1, 2, 0] and counts.least() == 2
    counts.note(2, 2, [9.0])
    counts.move_to(2.9)
    assert counts[1] == 2 and counts.least() == 0
    counts.move_to(3.0)
    assert counts[1] == 1 and counts.least() == 0, "the first of equals"
    counts.move_to(5.0)
    assert counts.least() == 1
