"""Predicted TTFT grows with queue and prompt; nothing is refused where nothing waits."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.scheduling.harness import make_request
from twostroke.core.config import PolicyName, SchedulerConfig
from twostroke.core.targets import parse_targets
from twostroke.kv_cache.manager import KVCacheManager
from twostroke.scheduling.admission.load_meter import Left, LoadMeter
from twostroke.scheduling.admission.predicted import Arrival, PredictedAdmission, retry_after
from twostroke.scheduling.admission.prediction import EngineLoad, predict_ttft
from twostroke.scheduling.admission.ttft_targets import TTFTTargets
from twostroke.scheduling.admission.waiting_calls import Ahead, WaitingCall, WaitingCalls
from twostroke.scheduling.assemble import assemble_scheduler
from twostroke.timing.step_times import Prices, PromptWork

SMALL = st.floats(0, 1, allow_subnormal=False)
WORKS = st.builds(PromptWork.of, st.integers(0, 5000), st.integers(0, 9000))
LOADS = st.builds(
    EngineLoad,
    prices=st.builds(Prices, st.floats(0, 1e-3), st.floats(0, 1e-6), st.floats(0, 0.01)),
    step_seconds=SMALL,
    chunk=st.integers(1, 8192),
    backlog=WORKS,
    num_free=st.integers(0, 64),
    seconds_per_entry=SMALL,
    under_way=SMALL,
    uncached=st.dictionaries(st.just(""), st.floats(0, 1)),
)
BUSY = EngineLoad(Prices(1e-4), 0.02, 2000, PromptWork(), 0, 0.1, 0.02)


@given(LOADS, st.integers(0, 500), st.integers(0, 500), WORKS, WORKS, WORKS)
def test_monotone_in_the_queue(
    load: EngineLoad, queue: int, more: int, ahead: PromptWork, further: PromptWork, own: PromptWork
) -> None:
    short = predict_ttft(load, Ahead(queue, ahead), own)
    assert predict_ttft(load, Ahead(queue + more, ahead.plus(further)), own) >= short
    assert predict_ttft(load, Ahead(queue, ahead), own.plus(further)) >= short
    assert 0 <= short < math.inf


def test_an_idle_engine_takes_what_the_prompt_takes() -> None:
    load = EngineLoad(Prices(1e-4), 0.0, 500, PromptWork(), 8, 5.0, 0.0)
    assert predict_ttft(load, Ahead(), PromptWork.of(0, 1000)) == pytest.approx(0.1)


def test_places_are_waited_for_only_beyond_the_free_ones() -> None:
    load = BUSY._replace(num_free=4)
    work = PromptWork.of(0, 10)
    assert predict_ttft(load, Ahead(3), work) < 0.1
    assert predict_ttft(load, Ahead(4), work) > 0.1


def call(
    name: str, tenant: str = "", samples: int = 1, priority: int = 0, start: float = 9.0
) -> WaitingCall:
    return WaitingCall(name, tenant, PromptWork.of(0, 100), samples, priority, start)


def waiting(*calls: WaitingCall) -> WaitingCalls:
    queue = WaitingCalls()
    for one in calls:
        queue.add(one)
    return queue


@pytest.mark.parametrize(
    ("policy", "ahead"),
    [("fcfs", 6), ("priority", 4), ("deadline", 2), ("fair", 3)],
)
def test_what_goes_before_depends_on_the_policy(policy: PolicyName, ahead: int) -> None:
    queue = waiting(
        call("a1", "flood", start=1.0),  # too late already
        call("a2", "flood", priority=5),
        call("a3", "flood", priority=5, start=2.0),
        call("a4", "flood", start=8.0),
        call("b1", "other"),
        call("own", "me", start=5.0),
    )
    assert queue.ahead_of(call("new", "me", start=5.0), policy, 1.5).num_samples == ahead + (
        policy == "fair"
    )


def test_a_flood_does_not_refuse_a_light_key_under_fair() -> None:
    """A key with nothing waiting waits for one request of each other key, however many it has."""
    queue = waiting(*(call(f"f{number}", "flood") for number in range(500)))
    assert queue.ahead_of(call("new", "light"), "fair", 0.0).num_samples == 1
    assert queue.ahead_of(call("new", "flood"), "fair", 0.0).num_samples == 500


def test_samples_leave_one_by_one_and_the_prompt_with_the_first() -> None:
    queue = waiting(call("three", samples=3))
    queue.sample_left("three")
    ahead = queue.ahead_of(call("new"), "fcfs", 0.0)
    assert (ahead.num_samples, ahead.work.tokens) == (2, 0)
    queue.sample_left("three")
    queue.sample_left("three")
    queue.sample_left("unknown")
    assert len(queue) == 0


def admission(
    load: EngineLoad | None = None, policy: PolicyName = "fcfs", factor: float = 1.0
) -> tuple[PredictedAdmission, LoadMeter]:
    config = SchedulerConfig(policy=policy, admission="predicted", admission_factor=factor)
    made = assemble_scheduler(config, KVCacheManager(64, 4), None)
    meter = LoadMeter(made.scheduler, made.times)
    meter.load = load or meter.load
    targets = TTFTTargets(parse_targets(("ttft=p95:1", "ttft=p95:9,key=slow")), "m")
    return PredictedAdmission(config, targets, meter), meter


def nothing_cached() -> int:
    return 0


@given(LOADS, st.integers(1, 9000), st.floats(0.001, 10))
def test_nothing_is_refused_where_nothing_waits(
    load: EngineLoad, tokens: int, target: float
) -> None:
    judge, _ = admission(load)
    assert judge.judge(Arrival("a", "", tokens, ttft_target=target), 0.0, nothing_cached) is None


@given(LOADS, st.integers(1, 60), st.integers(1, 2000))
def test_refusals_are_monotone_in_the_queue(load: EngineLoad, queue: int, tokens: int) -> None:
    """What is refused behind a queue is refused behind a longer one."""
    judge, _ = admission(load)
    for number in range(queue):
        judge.enter(Arrival(f"a{number}", "", 100), 0.0)
    arrival = Arrival("new", "", tokens)
    before = judge.judge(arrival, 0.0, nothing_cached)
    judge.enter(Arrival("more", "", 100), 0.0)
    after = judge.judge(arrival, 0.0, nothing_cached)
    assert before is None or after
    # The cache is asked only where that may decide; otherwise the tenant's mean share counts.
    if before and after and not load.uncached:
        assert after.predicted_ttft >= before.predicted_ttft


def fill(judge: PredictedAdmission, count: int) -> None:
    for number in range(count):
        judge.enter(Arrival(f"a{number}", "", 100), 0.0)


def test_a_refusal_says_what_was_predicted() -> None:
    judge, _ = admission(BUSY)
    fill(judge, 20)
    refused = judge.judge(Arrival("new", "", 100), 0.0, nothing_cached)
    assert refused is not None
    assert (refused.request_id, refused.ahead, refused.ttft_target) == ("new", 20, 1.0)
    assert 2.0 < refused.predicted_ttft < 4.0
    assert retry_after(refused) == math.ceil(refused.predicted_ttft - 1)


def test_target_and_factor_decide() -> None:
    judge, _ = admission(BUSY)
    fill(judge, 20)
    judge.enter(Arrival("slow", "slow", 10), 0.0)
    assert judge.judge(Arrival("new", "slow", 100), 0.0, nothing_cached) is None
    assert judge.judge(Arrival("new", "", 100, ttft_target=9.0), 0.0, nothing_cached) is None
    assert judge.judge(Arrival("new", "slow", 100, ttft_target=0.5), 0.0, nothing_cached)
    lenient, _ = admission(BUSY, factor=5.0)
    fill(lenient, 20)
    assert lenient.judge(Arrival("new", "", 100), 0.0, nothing_cached) is None


def test_vectors_have_no_first_token_to_be_late() -> None:
    judge, _ = admission(BUSY)
    fill(judge, 20)
    arrival = Arrival("new", "", 100, can_be_late=False)
    assert judge.judge(arrival, 0.0, nothing_cached) is None


def test_a_cached_prefix_is_looked_up_only_if_it_may_decide() -> None:
    judge, _ = admission(BUSY._replace(num_free=64))
    fill(judge, 1)
    asked = []

    def cached(tokens: int) -> int:
        asked.append(tokens)
        return tokens

    long = Arrival("long", "", 20_000)  # 2 s of prompt
    assert judge.judge(long, 0.0, lambda: cached(0)) is not None
    assert judge.judge(long, 0.0, lambda: cached(15_000)) is None
    assert judge.judge(Arrival("short", "", 10), 0.0, lambda: cached(1)) is None
    assert asked == [0, 15_000]
    fill(judge, 500)
    assert judge.judge(long, 0.0, lambda: cached(2)) is not None
    assert asked == [0, 15_000]


def test_what_has_left_no_longer_counts() -> None:
    judge, meter = admission(BUSY)
    fill(judge, 20)
    assert judge.judge(Arrival("new", "", 100), 0.0, nothing_cached) is not None
    meter.left.extend(Left(f"a{number}", 0.0, ran=True) for number in range(15))
    meter.leave("a15", 1)
    assert judge.judge(Arrival("new", "", 100), 0.0, nothing_cached) is None


def test_targets_by_key_and_percentile() -> None:
    texts = ("ttft=p50:0.1", "ttft=p95:0.3", "ttft=p95:2,key=batch", "ttft=p90:1,key=*")
    targets = TTFTTargets(parse_targets((*texts, "tpot=0.01", "ttft=p95:5,key=x,model=other")), "m")
    assert targets.of("") == 0.3
    assert targets.of("batch") == 2
    assert targets.of("x") == 1
    assert targets.of("batch", 0.05) == 0.05
    assert TTFTTargets((), "m").of("batch") is None


def test_the_meter_knows_what_is_left_of_prompts() -> None:
    config = SchedulerConfig(admission="predicted", max_num_batched_tokens=8)
    made = assemble_scheduler(config, KVCacheManager(64, 4), None)
    meter = LoadMeter(made.scheduler, made.times)
    request = make_request("long", list(range(1, 31)))
    meter.on_add([request])
    made.scheduler.add(request)
    made.scheduler.schedule(0.0)
    request.num_computed_tokens = 8
    meter.on_end([], [])
    assert meter.load.backlog == PromptWork.of(8, 22)
    assert (meter.load.num_free, meter.load.chunk) == (config.max_num_seqs - 1, 8)
