"""Prompts that are computed apart from their answers."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import pytest

from tests.simulator.fleets import LinearCost
from twostroke.core.config import SchedulerConfig
from twostroke.core.kv_tier_config import KVTierConfig
from twostroke.engine.executor import ExecutorInfo
from twostroke.routing.make_router import make_router
from twostroke.simulator.deployment.fleet_options import ReplicaDeath, Role
from twostroke.simulator.fleet.clock import VirtualClock
from twostroke.simulator.fleet.executor import SimulatedExecutor
from twostroke.simulator.fleet.fleet import Fleet
from twostroke.simulator.fleet.peers import Link, SimulatedPeers
from twostroke.simulator.fleet.places import ReplicaPlaces
from twostroke.simulator.fleet.replica import Replica
from twostroke.simulator.fleet.result import FleetResult
from twostroke.simulator.fleet.split import Split
from twostroke.simulator.fleet.tiers import Bandwidths, SimulatedTiers
from twostroke.simulator.workloads.base import OpenLoop, RequestSpec
from twostroke.timing.step_shape import StepShape

BLOCK = 4
CONFIG = SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=64)
LINK = Link(block_seconds=0.003, latency=0.05)
INFO = ExecutorInfo(
    model_id="m", vocab_size=50, max_model_len=1000, num_blocks=64, block_size=BLOCK
)


def make_replica(role: Role, link: Link = LINK, *, jump: bool = True) -> Replica:
    tiers = None
    if role == "decode":
        peers = SimulatedPeers(link, INFO.num_blocks, 1)
        tiers = SimulatedTiers(KVTierConfig(), INFO, Bandwidths(1.0, 1.0), peers)
    executor = SimulatedExecutor(INFO, LinearCost(), VirtualClock(), tiers=tiers)
    return Replica(executor, CONFIG, jump=jump)


def run_split(
    requests: Sequence[RequestSpec],
    *,
    prefill: int = 1,
    decode: int = 1,
    link: Link = LINK,
    failures: Sequence[ReplicaDeath] = (),
    jump: bool = True,
    keeps_first: bool = True,
    min_tokens: int = 16,
) -> tuple[FleetResult, ReplicaPlaces]:
    roles: list[Role] = [
        "prefill" if place < prefill else "decode" for place in range(prefill + decode)
    ]
    places = ReplicaPlaces(
        lambda place: make_replica(roles[place], link, jump=jump), roles, failures
    )
    split = Split(
        router=make_router("round-robin"),
        info=INFO,
        max_model_len=1000,
        min_tokens=min_tokens,
        keeps_first=keeps_first,
    )
    router = make_router("least-loaded")
    fleet = Fleet(places, router, OpenLoop(requests), 1000, split=split)
    result = fleet.run()
    for replica in places.replicas:
        replica.kv.check_integrity()
    return result, places


def crowd(count: int = 40) -> list[RequestSpec]:
    return [
        RequestSpec(number, 0.021 * number, 10 + 7 * number % 50, 1 + 5 * number % 23)
        for number in range(count)
    ]


def seconds(shape: StepShape) -> float:
    return LinearCost().step(shape).seconds


def test_one_request_is_computed_moves_and_is_answered() -> None:
    prompt, output = 30, 5
    result, _ = run_split([RequestSpec(0, 1.0, prompt, output)])
    (request,) = result.requests
    computed = 1.0 + seconds(StepShape(0, 0, ((prompt, 0),), 1))
    moved = prompt // BLOCK * BLOCK  # whole blocks
    arrives = computed + LINK.latency + moved // BLOCK * LINK.block_seconds
    # What is left of the prompt, and the first token.
    then = arrives + seconds(StepShape(0, 0, ((prompt + 1 - moved, moved),), 1))
    for step in range(output - 2):
        then += seconds(StepShape(1, prompt + 2 + step, (), 1))
    assert request.ttft == pytest.approx(computed - 1.0)
    assert request.finish == pytest.approx(then)
    assert (request.replica, request.output_tokens, result.num_handed_on) == (1, output, 1)
    assert result.prefix_hits == 0


@pytest.mark.parametrize("block_seconds", [0.0001, 0.003])
def test_blocks_of_a_part_move_while_the_next_is_computed(block_seconds: float) -> None:
    """A prompt of two steps and a half, by links that are faster and slower than its steps."""
    link = Link(block_seconds, LINK.latency)
    (request,) = run_split([RequestSpec(0, 1.0, 150, 2)], link=link)[0].requests
    ends, begin = [1.0], 0
    for size in (64, 64, 22):
        ends.append(ends[-1] + seconds(StepShape(0, 0, ((size, begin),), begin + size == 150)))
        begin += size
    free = 0.0
    for end in ends[1:3]:
        free = max(free, end) + 64 // BLOCK * link.block_seconds
    # 148 tokens are whole blocks: 20 of the last step.
    arrives = max(free, ends[3]) + 20 // BLOCK * link.block_seconds + link.latency
    assert request.ttft == pytest.approx(ends[3] - 1.0)
    then = arrives + seconds(StepShape(0, 0, ((3, 148),), 1))
    assert request.finish == pytest.approx(then)
    at_once = ends[3] + 37 * link.block_seconds + link.latency
    saved = min(32 * link.block_seconds, ends[3] - ends[1])
    assert arrives == pytest.approx(at_once - saved)


def test_blocks_that_come_at_one_time_to_two_replicas_are_both_taken() -> None:
    """Each waited for the other's step, and the simulation stood still."""
    result, _ = run_split([RequestSpec(n, 0.0, 40, 8) for n in range(2)], prefill=2, decode=2)
    first, second = result.requests
    assert {first.replica, second.replica} == {2, 3}
    assert first.finish == pytest.approx(second.finish)
    assert (first.output_tokens, second.output_tokens) == (8, 8)


def test_a_client_may_get_the_first_token_of_the_answering_replica() -> None:
    (request,) = run_split([RequestSpec(0, 0.0, 30, 5)], keeps_first=False)[0].requests
    (kept,) = run_split([RequestSpec(0, 0.0, 30, 5)])[0].requests
    assert request.ttft > kept.ttft + LINK.latency + 7 * LINK.block_seconds
    assert request.output_tokens == 5


def test_short_prompts_are_computed_where_they_are_answered() -> None:
    result, places = run_split([RequestSpec(0, 0.0, 15, 3), RequestSpec(1, 9.0, 16, 3)])
    assert result.num_handed_on == 1
    assert sum(places.replicas[0].log.prefill_tokens) == 16
    assert sum(places.replicas[1].log.prefill_tokens) == 15


def test_a_prompt_that_the_pool_cannot_hold_is_computed_where_it_is_answered() -> None:
    requests = [RequestSpec(0, 0.0, 250, 3)]
    assert run_split(requests)[0].num_handed_on == 1
    roles: list[Role] = ["prefill", "decode"]
    split = Split(make_router("round-robin"), INFO, 250, 16, keeps_first=True)
    fleet = Fleet(
        ReplicaPlaces(lambda place: make_replica(roles[place]), roles),
        make_router("round-robin"),
        OpenLoop(requests),
        1000,
        split=split,
    )
    result = fleet.run()
    assert (len(result.requests), result.num_handed_on) == (1, 0)


@pytest.mark.parametrize("keeps_first", [True, False])
@pytest.mark.parametrize("failures", [(), (ReplicaDeath(0, 0.3, 0.2), ReplicaDeath(3, 0.4, 0.1))])
def test_steps_taken_together_change_nothing(
    failures: tuple[ReplicaDeath, ...], keeps_first: bool
) -> None:
    one, other = (
        run_split(
            crowd(), prefill=2, decode=3, jump=jump, failures=failures, keeps_first=keeps_first
        )[0]
        for jump in (True, False)
    )
    assert one.requests == other.requests
    assert len(one.requests) == 40
    assert all(
        request.output_tokens == spec.output_tokens for request, spec in zip(one.requests, crowd())
    )


def test_what_a_sender_that_dies_had_not_sent_is_computed() -> None:
    prompt, slow = 30, Link(block_seconds=1.0, latency=0.0)
    requests = [RequestSpec(0, 0.0, prompt, 4), RequestSpec(1, 20.0, prompt, 4)]
    result, places = run_split(requests, link=slow, failures=[ReplicaDeath(0, 2.0)])
    assert len(result.requests) == 2
    answering = places.replicas[1]
    assert sum(answering.log.prefill_tokens) == 2 * prompt + 1
    # The second came when no replica computed prompts any more.
    assert (result.num_handed_on, result.num_moved) == (1, 0)


def test_without_an_answering_replica_requests_are_held() -> None:
    result, _ = run_split(crowd(8), failures=[ReplicaDeath(1, 0.0, 3.0)])
    assert len(result.requests) == 8
    assert all(request.finish > 3.0 for request in result.requests if request.output_tokens > 1)
    lost, _ = run_split(crowd(8), failures=[ReplicaDeath(1, 0.0, inf)])
    assert all(request.output_tokens == 1 for request in lost.requests)
