"""Deadlines, early refusal and tuned budgets on virtual time: what they do to a fleet."""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulator.fleets import make_executor
from twostroke.core.config import SchedulerConfig
from twostroke.core.step import Reason
from twostroke.core.targets import parse_targets
from twostroke.observability.events import StepEvent
from twostroke.routing.routers import make_router
from twostroke.scheduling.admission.ttft_targets import TTFTTargets
from twostroke.simulator.fleet.fleet import Fleet
from twostroke.simulator.fleet.kept_events import KeptEvents
from twostroke.simulator.fleet.pool import FixedPool
from twostroke.simulator.fleet.replica import Replica
from twostroke.simulator.fleet.result import FleetResult
from twostroke.simulator.workloads.base import OpenLoop, RequestSpec

TARGET = 0.5


def run(
    specs: list[RequestSpec],
    *targets: str,
    caching: bool = True,
    num_blocks: int = 5000,
    **config: Any,
) -> tuple[FleetResult, list[StepEvent]]:
    events = KeptEvents()
    replica = Replica(
        make_executor(num_blocks, 16),
        SchedulerConfig(**{"max_num_seqs": 8, **config}),
        enable_prefix_caching=caching,
        observers=[events],
        targets=TTFTTargets(parse_targets(targets or (f"ttft={TARGET}",)), "m"),
    )
    fleet = Fleet(FixedPool([replica]), make_router("round-robin"), OpenLoop(specs), 100_000)
    return fleet.run(), events.events


def overload(rate: float, seconds: float = 10.0, prompt: int = 64) -> list[RequestSpec]:
    """Each takes 20 steps of some 8 ms, and eight run at once: about 45 requests a second."""
    return [
        RequestSpec(number, number / rate, prompt + number % 7, 20)
        for number in range(int(rate * seconds))
    ]


def goodput(result: FleetResult, seconds: float = 10.0) -> float:
    return sum(request.ttft <= TARGET for request in result.requests) / seconds


@pytest.mark.parametrize("policy", ["fcfs", "fair", "deadline"])
def test_early_refusal_keeps_goodput_at_ten_times_the_load(policy: str) -> None:
    light, _ = run(overload(40), policy=policy, admission="predicted")
    heavy, _ = run(overload(450), policy=policy, admission="predicted")
    late, _ = run(overload(450), policy="fcfs")
    assert not light.refused_early
    assert goodput(heavy) >= 0.9 * goodput(light)
    assert goodput(late) < 0.2 * goodput(light)
    assert len(heavy.requests) + len(heavy.refused_early) == 4500, "each request has an answer"


def test_deadlines_alone_keep_goodput_but_leave_the_rest_waiting() -> None:
    heavy, _ = run(overload(450), policy="deadline")
    assert goodput(heavy) >= 0.9 * goodput(run(overload(40))[0])
    assert len(heavy.requests) == 4500


def test_step_events_tell_of_refusals() -> None:
    result, events = run(overload(450, 2.0), admission="predicted")
    told = [refused for event in events for refused in event.refused]
    assert result.refused_early
    # Those behind the last step are told of by none.
    assert {f"r{number}" for number in result.refused_early} >= {one.request_id for one in told}
    assert len(told) >= 0.9 * len(result.refused_early)
    assert all(one.predicted_ttft > TARGET == one.ttft_target for one in told)
    assert StepEvent.from_dict(events[-1].to_dict()) == events[-1]


def test_a_light_tenant_is_not_refused_for_a_flood_under_fair() -> None:
    specs = sorted(
        [RequestSpec(n, n / 400, 64, 20, tenant=1) for n in range(2000)]
        + [RequestSpec(5000 + n, n / 5, 64, 20, tenant=2) for n in range(25)],
        key=lambda spec: spec.arrival,
    )
    result, _ = run(specs, policy="fair", admission="predicted")
    assert len(result.refused_early) > 1000
    assert not [number for number in result.refused_early if number >= 5000]


def test_targets_of_keys_are_their_deadlines() -> None:
    """Under one queue the key that allows more time waits for the one that allows less."""
    specs = [
        RequestSpec(number, number / 60, 64, 20, tenant=1 + number % 2) for number in range(400)
    ]
    result, _ = run(specs, "ttft=0.3,key=tenant-1", "ttft=8,key=tenant-2", policy="deadline")
    quick = [r.ttft for r in result.requests if r.tenant == 1]
    patient = [r.ttft for r in result.requests if r.tenant == 2]
    assert sum(ttft <= 0.3 for ttft in quick) >= 0.95 * len(quick)
    assert max(patient) > 0.5
    assert sum(ttft <= 8 for ttft in patient) == len(patient)


def test_a_cached_prompt_is_not_refused_for_its_length() -> None:
    """Prompts of 6,000 tokens that the cache holds wait no longer than short ones."""
    shared = ((0, 6000),)
    first = RequestSpec(0, 0.0, 6008, 4, shared)
    chats = [RequestSpec(1 + n, 3.0 + n / 30, 6008, 8, shared) for n in range(60)]
    cached, _ = run([first, *chats], "ttft=0.15", admission="predicted")
    fresh, _ = run([first, *chats], "ttft=0.15", admission="predicted", caching=False)
    assert len(cached.refused_early) < 0.1 * len(fresh.refused_early)


@pytest.mark.parametrize("target", [0.02, 0.05])
def test_a_tuned_budget_keeps_decoding_within_the_target(target: float) -> None:
    """Chats, and a prompt of 8,000 tokens every second: each gap of a chat is a step."""
    chats = [RequestSpec(number, number / 4, 50, 60) for number in range(40)]
    long = [RequestSpec(100 + number, 0.5 + number, 8000, 4) for number in range(8)]
    specs = sorted(chats + long, key=lambda spec: spec.arrival)
    _, events = run(specs, tpot_target=target, max_num_batched_tokens=4096)
    mixed = [
        event
        for event in events
        if any(share.num_prompt_tokens == 0 for share in event.scheduled)
        and any(share.num_prompt_tokens for share in event.scheduled)
    ]
    assert len(mixed) > 50
    late = [event for event in mixed if event.duration > 1.1 * target]
    assert len(late) <= 0.05 * len(mixed)
    full = [event for event in mixed if event.num_tokens == event.token_budget]
    assert sum(event.duration > 0.85 * target for event in full) >= 0.8 * len(full)
    reasons = {held.reason for event in events for held in event.held_back}
    assert Reason.TPOT_TARGET in reasons
    assert len({event.token_budget for event in events}) > 5


def test_the_same_workload_gives_the_same_run() -> None:
    settings: dict[str, Any] = {"policy": "deadline", "admission": "predicted", "tpot_target": 0.03}
    first, _ = run(overload(100, 3.0, 300), **settings)
    again, _ = run(overload(100, 3.0, 300), **settings)
    assert first.requests == again.requests and first.refused_early == again.refused_early
