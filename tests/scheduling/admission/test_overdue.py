"""What waits too long to meet its target is given up, but for what was promised. Virtual time."""

from __future__ import annotations

from tests.scheduling.harness import make_request
from tests.specs import respecify
from twostroke.core.config import SchedulerConfig
from twostroke.core.request import Request
from twostroke.core.step import StepPlan, StepResult
from twostroke.kv_cache.manager import KVCacheManager
from twostroke.observability.events import SchedulerStats
from twostroke.observability.observer import ObservedStep
from twostroke.scheduling.admission.load_meter import LoadMeter
from twostroke.scheduling.admission.overdue import OverdueCalls
from twostroke.scheduling.assemble import assemble_scheduler


def calls(factor: float = 1.0, **running: int) -> OverdueCalls:
    """In an engine that runs so many requests, by tenant."""
    made = assemble_scheduler(SchedulerConfig(admission="predicted"), KVCacheManager(64, 4), None)
    meter = LoadMeter(made.scheduler, made.times)
    meter.load = meter.load._replace(running=running)
    return OverdueCalls(made.times, meter, factor)


def pass_step(overdue: OverdueCalls) -> None:
    """A step in which nothing that waits begins."""
    plan, result = StepPlan(step=0, time=0.0), StepResult()
    overdue.on_step(ObservedStep(plan, result, [], [], lambda: 0.01, SchedulerStats))


def arrived(name: str, now: float, tenant: str = "", target: float | None = 1.0) -> Request:
    request = make_request(name, [1, 2, 3], tenant=tenant)
    request.arrival_time = now
    respecify(request, ttft_target=target)
    return request


def taken(overdue: OverdueCalls, now: float) -> list[str]:
    pass_step(overdue)
    return [request.request_id for one in overdue.take(now) for request in one.samples]


def test_a_call_is_overdue_when_its_first_token_would_be_late() -> None:
    """A tenth of its target is the margin for what steps take."""
    overdue = calls()
    for number in range(3):
        overdue.on_add([arrived(f"a{number}", number / 10)])
    assert taken(overdue, 0.89) == []
    assert taken(overdue, 0.95) == ["a0"]
    (one,) = overdue.take(1.05)
    assert (one.refused.request_id, one.refused.ttft_target, one.refused.ahead) == ("a1", 1.0, 1)
    assert one.refused.predicted_ttft > 1.0
    assert taken(overdue, 9.0) == ["a2"]


def test_the_first_of_each_key_is_promised_its_turn() -> None:
    overdue = calls(flood=8)
    for tenant in ("light", "flood"):
        for number in range(2):
            overdue.on_add([arrived(f"{tenant}{number}", 0.0, tenant)])
    assert taken(overdue, 9.0) == ["light1", "flood1"]


def test_a_key_that_is_alone_is_promised_nothing() -> None:
    """It waits for its own requests: an answer that would come late makes others late."""
    overdue = calls(flood=8)
    overdue.on_add([arrived("first", 0.0, "flood")])
    assert taken(overdue, 9.0) == ["first"]


def test_what_has_not_waited_through_a_step_is_not_overdue() -> None:
    """A prompt that takes longer than its target runs on an idle engine."""
    overdue = calls()
    overdue.on_add([arrived("long", 0.0, target=1e-6)])
    assert overdue.take(9.0) == []
    assert taken(overdue, 9.0) == ["long"]


def test_what_runs_or_has_no_target_is_never_overdue() -> None:
    overdue = calls()
    requests = [arrived(f"a{number}", 0.0) for number in range(3)]
    for request in requests:
        overdue.on_add([request])
    overdue.on_add([arrived("patient", 0.0, target=None)])
    part = arrived("part", 0.0)
    respecify(part, follows=True)
    overdue.on_add([part])
    overdue.on_end([requests[1]], [])
    assert taken(overdue, 9.0) == ["a0", "a2"]


def test_one_sample_that_runs_keeps_its_call() -> None:
    overdue = calls()
    for name in ("x", "y"):
        samples = [arrived(f"{name}#{index}", 0.0) for index in range(3)]
        for sample in samples:
            respecify(sample, parent_id=name)
        overdue.on_add(samples)
        if name == "x":
            overdue.on_end(samples[:1], [])
    assert taken(overdue, 9.0) == ["y#0", "y#1", "y#2"]


def test_the_factor_stretches_targets_and_the_wait_before_shortens_them() -> None:
    overdue = calls(factor=2.0)
    late = arrived("late", 1.0)
    respecify(late, waited=0.5)
    overdue.on_add([late])
    assert taken(overdue, 2.3) == []
    assert taken(overdue, 2.5) == ["late"]
