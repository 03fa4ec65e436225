"""No key shuts another out: samples count, not calls, and what was predicted wrongly is corrected.

Time is a number here; nothing waits.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.scheduling.admission.test_prediction import BUSY, LOADS, admission, call, waiting
from tests.scheduling.harness import make_request
from twostroke.core.config import PolicyName, SchedulerConfig
from twostroke.kv_cache.manager import KVCacheManager
from twostroke.scheduling.admission.corrections import HIGHEST, LOWEST, Corrections
from twostroke.scheduling.admission.load_meter import Left, LoadMeter
from twostroke.scheduling.admission.predicted import Arrival, PredictedAdmission
from twostroke.scheduling.admission.prediction import EngineLoad
from twostroke.scheduling.assemble import assemble_scheduler

POLICIES: tuple[PolicyName, ...] = ("fcfs", "priority", "fair", "deadline")


def nothing_cached() -> int:
    return 0


def is_refused(judge: PredictedAdmission, tenant: str, now: float = 0.0) -> bool:
    return judge.judge(Arrival("new", tenant, 100), now, nothing_cached) is not None


@given(LOADS, st.sampled_from(POLICIES), st.integers(1, 128), st.floats(0.001, 10))
def test_a_key_with_nothing_waiting_is_let_in(
    load: EngineLoad, policy: PolicyName, samples: int, target: float
) -> None:
    """Whatever was measured, and however many samples of others wait."""
    judge, _ = admission(load, policy)
    for number in range(2):
        judge.enter(Arrival(f"a{number}", "flood", 100, samples), 0.0)
    light = Arrival("new", "light", 100, ttft_target=target)
    assert judge.judge(light, 0.0, nothing_cached) is None
    assert judge.judge_least(light, 0.0) is None


def test_samples_count_and_not_calls() -> None:
    """A light key's second call waits for two samples of a flood's call, not for all of it."""
    queue = waiting(call("f1", "flood", samples=128), call("f2", "flood", samples=128))
    queue.add(call("l1", "light"))
    assert queue.ahead_of(call("new", "light"), "fair", 0.0).num_samples == 1 + 2
    assert queue.ahead_of(call("new", "flood"), "fair", 0.0).num_samples == 256 + 1
    assert queue.of_tenant("flood") == 256


def test_places_that_others_must_yield_are_free() -> None:
    """Under `fair` a key below its share gets a place at once, so it waits for no entries."""
    load = BUSY._replace(seconds_per_entry=45.0, running={"flood": 128})
    judge, _ = admission(load, "fair")
    for number in range(2):
        judge.enter(Arrival(f"a{number}", "flood", 100, 128), 0.0)
    judge.enter(Arrival("first", "light", 100), 0.0)
    assert not is_refused(judge, "light")
    assert is_refused(judge, "flood")
    unfair, _ = admission(load, "fcfs")
    unfair.enter(Arrival("first", "light", 100), 0.0)
    assert is_refused(unfair, "light")


def test_a_wrong_estimate_corrects_itself() -> None:
    """Entries look ten times slower than they are: some calls later the same call is let in."""
    judge, meter = admission(BUSY._replace(seconds_per_entry=1.0))
    now = 0.0
    for number in range(12):
        judge.enter(Arrival(f"p{number}", "light", 10), now)
        meter.left.append(Left(f"p{number}", now + 0.1, ran=True))
        now += 1.0
    judge.enter(Arrival("waits", "light", 10), now)
    assert not is_refused(judge, "light", now)
    judge.enter(Arrival("other", "flood", 10), now)
    assert is_refused(judge, "flood", now), "another key's waits say nothing of this one's"


def test_waits_longer_than_expected_refuse_sooner() -> None:
    """Those that were given up count as well: else only the lucky ones would."""
    judge, meter = admission(BUSY)
    judge.enter(Arrival("waits", "", 10), 0.0)
    assert not is_refused(judge, "")
    for number in range(12):
        judge.enter(Arrival(f"p{number}", "", 10), 0.0)
        meter.left.append(Left(f"p{number}", 5.0, ran=False))
    assert is_refused(judge, "")


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1e6))))
def test_corrections_are_bounded(waits: list[tuple[float, float]]) -> None:
    corrections = Corrections()
    for waited, expected in waits:
        corrections.add("", waited, expected)
    assert LOWEST <= corrections.of("") <= HIGHEST
    assert corrections.of("another") == 1.0


@pytest.mark.parametrize("policy", POLICIES)
def test_what_the_least_call_is_refused_for_holds_for_every_call(policy: PolicyName) -> None:
    judge, meter = admission(BUSY._replace(running={"": 8}), policy)
    for number in range(20):
        judge.enter(Arrival(f"a{number}", "", 100), 0.0)
    least = judge.judge_least(Arrival("new", "", 0), 0.0)
    assert (least is None) == (policy == "priority"), "a call's own priority is not known yet"
    assert is_refused(judge, "")
    assert least is None or judge.judge_least(Arrival("again", "", 0, waited=0.5), 0.0)
    meter.left.extend(Left(f"a{number}", 0.0, ran=True) for number in range(19))
    assert judge.judge_least(Arrival("new", "", 0), 0.0) is None


def test_entries_take_no_longer_than_answers_may() -> None:
    """Places that stay taken for an hour of pauses are no sign of hours between entries."""
    config = SchedulerConfig(admission="predicted", max_num_seqs=2)
    made = assemble_scheduler(config, KVCacheManager(64, 4), None)
    meter = LoadMeter(made.scheduler, made.times)
    for name in ("a", "b"):
        made.scheduler.add(make_request(name, [1, 2, 3], 10))
    made.scheduler.schedule(0.0)
    meter._full_seconds, meter._num_entries, meter._mean_step = 3600.0, 1.0, 0.1
    meter.on_end([], [])
    assert meter.load.seconds_per_entry == pytest.approx(2 * 10 * 0.1 / 2)
