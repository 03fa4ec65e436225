"""What an engine's steps count towards targets, and that it costs next to nothing."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.fakes import FakeExecutor
from tests.observability.runs import make_request, observe, take_steps
from twostroke.core.config import EngineConfig, ObservabilityConfig, SchedulerConfig
from twostroke.core.errors import ErrorMessage, RequestFailedError
from twostroke.core.generation_request import GenerationRequest
from twostroke.core.output import make_output
from twostroke.core.request import FinishReason, Request
from twostroke.core.sampling_params import SamplingParams
from twostroke.core.targets import parse_targets
from twostroke.engine.llm_engine import LLMEngine
from twostroke.observability.events import SchedulerStats
from twostroke.observability.metrics import EngineMetrics
from twostroke.observability.targets.observer import TargetObserver
from twostroke.observability.targets.watch import TargetReport


def make_observer(*texts: str, now: float = 0.0) -> TargetObserver:
    return TargetObserver(parse_targets(texts), "pilot", lambda: now, SchedulerStats)


def by_text(observer: TargetObserver) -> dict[str, TargetReport]:
    return {report.target: report for report in observer.report()}


def counts(report: TargetReport) -> tuple[float, float]:
    return report.total_observations, report.total_misses


def test_steps() -> None:
    """`a` arrives at 0.5 and `b` at 0.6; both have a token at 1.2, and end at 1.4 and 1.5."""
    observer = make_observer(
        "ttft=0.65", "tpot=0.12", "e2el=0.89", "errors=0.1", "kv=0.3", "queue=5"
    )
    for step in take_steps():
        for request in step.requests:
            if request.num_output_tokens == 1 and request.first_token_time is None:
                request.first_token_time = step.finished
        observer.on_step(step)
    reports = by_text(observer)
    assert counts(reports["ttft=p95:0.65"]) == (2, 1)
    assert [miss.request_id for miss in reports["ttft=p95:0.65"].worst] == ["a"]
    assert reports["ttft=p95:0.65"].worst[0].value == pytest.approx(0.7)
    assert counts(reports["tpot=p95:0.12"]) == (2, 1)  # 0.1 and 0.15
    assert counts(reports["e2el=p95:0.89"]) == (2, 2)  # 0.9 each
    assert counts(reports["errors=0.1"]) == (2, 0)
    observations, misses = counts(reports["kv=p95:0.3"])
    assert observations == misses == pytest.approx(0.4)  # from the end of the first step
    assert counts(reports["queue=p95:5"])[1] == 0


def ended(*requests: Request, now: float, error: bool = False) -> TargetObserver:
    observer = make_observer("ttft=1", "errors=0.1", "e2el=1", now=now)
    message = ErrorMessage.of(RequestFailedError("broken")) if error else None
    reason = FinishReason.ERROR if error else FinishReason.ABORT
    outputs = [make_output(request, [], reason, message) for request in requests]
    observer.on_end(requests, outputs)
    return observer


def test_a_client_that_gave_up_waiting_is_a_miss() -> None:
    waited = ended(make_request(arrival_time=1.0), now=4.0)
    assert [counts(report) for report in waited.report()] == [(1, 1), (0, 0), (0, 0)]
    left_early = ended(make_request(arrival_time=1.0), now=1.5)
    assert [counts(report) for report in left_early.report()] == [(0, 0)] * 3


def test_failures_are_errors() -> None:
    died = ended(make_request(arrival_time=1.0), now=1.5, error=True)
    assert [counts(report) for report in died.report()] == [(0, 0), (1, 1), (0, 0)]
    observer, request = make_observer("errors=0.1"), make_request()
    failure = RequestFailedError("the forward pass failed")
    finished = [(request, FinishReason.ERROR)]
    observer.on_step(observe(0, 1.0, [(request, 0, 6, 1)], finished=finished, error=failure))
    assert counts(observer.report()[0]) == (1, 1)


def test_a_queue_that_is_given_up_is_empty() -> None:
    """No step comes after the last request has left, so no step would say so."""
    now = [0.0]
    config = EngineConfig(
        scheduler=SchedulerConfig(max_num_seqs=1),
        observability=ObservabilityConfig(target=("queue=p50:1",)),
    )
    engine = LLMEngine(FakeExecutor(), config=config, clock=lambda: now[0])
    params = SamplingParams(max_tokens=50, detokenize=False)
    for name in "abcd":
        engine.submit(GenerationRequest(request_id=name, prompt_token_ids=[1, 2], params=params))
    engine.step()
    now[0] = 10.0
    for name in "abcd":
        engine.abort(name)
    now[0] = 50.0
    assert engine.targets is not None
    window = engine.targets.report()[0].windows[0]
    assert (window.observations, window.misses, window.value) == (50, 10, 0)


def send(observer: TargetObserver, *tenants: str) -> None:
    requests = [make_request(f"{number}-of-{tenant}") for number, tenant in enumerate(tenants)]
    for request, tenant in zip(requests, tenants):
        request.tenant, request.first_token_time = tenant, 2.0
    observer.on_step(observe(0, 1.0, [(request, 0, 6, 1) for request in requests], duration=1.0))


def test_each_key_has_its_own_windows() -> None:
    observer = make_observer("ttft=3", "ttft=1,key=alice", "ttft=9,key=*")
    assert observer.watched == ["ttft=p95:3", "ttft=p95:1,key=alice", "ttft=p95:9,key=*"]
    send(observer, "alice", "bob", "bob", "")
    reports = {text: counts(report) for text, report in by_text(observer).items()}
    assert reports == {
        "ttft=p95:3": (4, 0),
        "ttft=p95:1,key=alice": (1, 1),
        "ttft=p95:9,key=bob": (2, 0),
    }
    alice = by_text(observer)["ttft=p95:1,key=alice"]
    assert [(miss.request_id, miss.key) for miss in alice.worst] == [("0-of-alice", "alice")]


def test_targets_of_other_models_are_not_watched() -> None:
    observer = make_observer("ttft=1,model=pilot", "tpot=1,model=other")
    assert observer.watched == ["ttft=p95:1,model=pilot"]


def test_metrics_name_no_key() -> None:
    observer, metrics = make_observer("ttft=1", "ttft=5,key=alice"), EngineMetrics("pilot")
    metrics.show_targets(observer)
    send(observer, "alice")
    text = metrics.render()[0].decode()
    assert "alice" not in text
    samples = {
        (s.name, s.labels.get("window", "")): s.value
        for family in text_string_to_metric_families(text)
        for s in family.samples
        if s.name.startswith("twostroke:target_")
    }
    assert samples[("twostroke:target_limit", "")] == 1
    assert samples[("twostroke:target_misses_total", "")] == 1
    assert samples[("twostroke:target_met", "5m")] == 0
    assert samples[("twostroke:target_burn_rate", "60m")] == pytest.approx(20)
    assert samples[("twostroke:target_value", "1m")] == pytest.approx(2, rel=0.01)
    assert len(samples) == 3 + 3 * 3


@pytest.mark.parametrize("targets", [(), ("ttft=p95:1", "kv=0.9")])
def test_without_targets_nothing_watches(targets: Sequence[str]) -> None:
    config = EngineConfig(observability=ObservabilityConfig(target=tuple(targets)))
    engine = LLMEngine(FakeExecutor(), config=config)
    watching = [type(observer).__name__ for observer in engine.loop.observers]
    assert watching.count("TargetObserver") == bool(targets)
    assert ("twostroke:target" in engine.metrics.render()[0].decode()) == bool(targets)


def test_a_step_costs_little() -> None:
    """Of 64 requests, with all five targets: 1 % of a step of 5 ms, on a busy machine."""
    observer = make_observer("ttft=p95:0.3", "tpot=p50:0.025", "errors=0.001", "kv=0.9", "queue=25")
    requests = [make_request(f"r{i}") for i in range(64)]
    stats = SchedulerStats(num_running=64, num_waiting=3, total_blocks=100, free_blocks=40)
    steps = [
        observe(i, i / 1000, [(r, 6, 1, 1) for r in requests], duration=0.001, stats=stats)
        for i in range(20)
    ]
    for request in requests:
        request.first_token_time = -1.0
    best = min(seconds_for(observer, steps) for _ in range(20))
    assert best < 50e-6, f"{best * 1e6:.1f} us a step"


def seconds_for(observer: TargetObserver, steps: Sequence[object]) -> float:
    began = time.perf_counter()
    for step in steps:
        observer.on_step(step)  # type: ignore[arg-type]
    return (time.perf_counter() - began) / len(steps)
