"""Policy ``deadline``: least slack first, what is late goes behind, and nothing waits for ever."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.scheduling.harness import BLOCK, Harness, make_request
from tests.specs import respecify
from tests.timing.test_step_times import Machine
from twostroke.core.config import SchedulerConfig
from twostroke.core.request import Request
from twostroke.kv_cache.manager import KVCacheManager
from twostroke.scheduling.assemble import assemble_scheduler
from twostroke.scheduling.policies.deadline import LATE_SHARE, PATIENCE, SPARE, DeadlinePolicy
from twostroke.timing.step_times import StepTimes

CONFIG = SchedulerConfig(policy="deadline", max_num_seqs=2, max_num_batched_tokens=16)


def request(
    name: str,
    number: int,
    arrival: float = 0.0,
    target: float | None = 1.0,
    prompt: int = 3,
) -> Request:
    made = make_request(name, list(range(1, prompt + 1)))
    respecify(made, ttft_target=target)
    made.arrival_time, made.sequence_number = arrival, number
    return made


def order(policy: DeadlinePolicy) -> list[str]:
    return [policy.pop().request_id for _ in range(len(policy))]


def test_the_sooner_deadline_goes_first() -> None:
    policy = DeadlinePolicy(StepTimes())
    for number, (name, target) in enumerate((("slow", 5.0), ("quick", 0.3), ("mean", 1.0))):
        policy.push(request(name, number, target=target))
    assert order(policy) == ["quick", "mean", "slow"]


def test_the_longer_prompt_must_begin_sooner() -> None:
    """Equal deadlines: slack is what is left after the prompt."""
    machine = Machine()
    for number in range(20):
        machine.run(prompt=100 + 50 * number)
    policy = DeadlinePolicy(machine.times)
    now = machine.now
    policy.push(request("short", 0, now, prompt=10))
    policy.push(request("long", 1, now, prompt=3000))
    assert order(policy) == ["long", "short"]


def test_a_cached_prompt_may_wait() -> None:
    machine = Machine()
    for number in range(20):
        machine.run(prompt=100 + 50 * number)
    policy = DeadlinePolicy(machine.times, lambda r: 2900 if r.request_id == "cached" else 0)
    policy.push(request("cached", 0, machine.now, prompt=3000))
    policy.push(request("new", 1, machine.now, prompt=2000))
    assert order(policy) == ["new", "cached"]


def test_what_is_late_goes_behind() -> None:
    times = StepTimes()
    policy = DeadlinePolicy(times)
    policy.push(request("lost", 0, 0.0, 1.0))
    policy.push(request("fresh", 1, 4.0, 2.0))
    times.now = 5.0
    assert order(policy) == ["fresh", "lost"]


def test_without_a_target_a_request_waits_no_longer_than_its_patience() -> None:
    policy = DeadlinePolicy(StepTimes())
    policy.push(request("patient", 0, 0.0, None))
    policy.push(request("early", 1, PATIENCE - 2.1, 1.0))
    policy.push(request("later", 2, PATIENCE - 1.5, 1.0))
    assert order(policy) == ["early", "patient", "later"]


def test_one_that_was_preempted_is_never_late() -> None:
    times = StepTimes()
    policy = DeadlinePolicy(times)
    begun = request("begun", 0, 0.0, 1.0)
    begun.num_preemptions = 1
    times.now = 5.0
    policy.push(request("fresh", 1, 5.0, 1.0))
    policy.push(begun)
    assert order(policy) == ["begun", "fresh"]


def test_late_requests_have_their_turn() -> None:
    """Fresh ones come without end: one entry in ``LATE_SHARE`` is a late one's, oldest first."""
    times = StepTimes()
    policy = DeadlinePolicy(times)
    for number in range(3):
        policy.push(request(f"late{number}", number, 0.1 * number, 1.0))
    times.now = 10.0
    entered = []
    for number in range(3 * LATE_SHARE):
        policy.push(request(f"r{number}", 10 + number, times.now, 1.0))
        entered.append(policy.pop().request_id)
        times.now += 0.01
    turns = [place for place, name in enumerate(entered) if name.startswith("late")]
    assert turns == [LATE_SHARE - 1, 2 * LATE_SHARE - 1, 3 * LATE_SHARE - 1]
    assert [entered[place] for place in turns] == ["late0", "late1", "late2"]


@given(
    rows=st.lists(
        st.tuples(
            st.floats(0, 50), st.none() | st.floats(0.01, 20), st.integers(1, 40), st.booleans()
        ),
        min_size=1,
        max_size=40,
    ),
    steps=st.lists(st.floats(0, 5), min_size=1, max_size=40),
)
@settings(max_examples=100, deadline=None)
def test_each_request_comes_out_once(
    rows: list[tuple[float, float | None, int, bool]], steps: list[float]
) -> None:
    """Any arrivals, removals and passing of time; ranks are unique and do not change."""
    times = StepTimes()
    policy = DeadlinePolicy(times)
    waiting: dict[str, Request] = {}
    ranks = {}
    for number, (arrival, target, prompt, leaves) in enumerate(rows):
        made = request(f"r{number}", number, arrival, target, prompt)
        policy.push(made)
        ranks[made.request_id] = policy.rank(made)
        waiting[made.request_id] = made
        times.now += steps[number % len(steps)]
        if leaves and waiting:
            gone = waiting.pop(next(iter(waiting)))
            policy.remove(gone)
        assert len(policy) == len(waiting)
    assert len(set(ranks.values())) == len(ranks)
    while waiting:
        head = policy.peek()
        assert head is not None and head is policy.peek()
        popped = policy.pop()
        assert popped is head and policy.rank(popped) == ranks[popped.request_id]
        del waiting[popped.request_id]
        times.now += 0.5
    assert policy.peek() is None


@given(
    rows=st.lists(
        st.tuples(st.integers(1, 60), st.integers(1, 12), st.none() | st.floats(0.5, 40)),
        min_size=1,
        max_size=14,
    )
)
@settings(max_examples=40, deadline=None)
def test_all_requests_end_on_any_mix(rows: list[tuple[int, int, float | None]]) -> None:
    """With preemptions (few blocks) and chunks; the fake executor checks every slot."""
    harness = Harness(CONFIG, num_blocks=24)
    kv = KVCacheManager(24, BLOCK)
    harness.kv, harness.scheduler = kv, assemble_scheduler(CONFIG, kv, None).scheduler
    for number, (prompt, answer, target) in enumerate(rows):
        made = make_request(f"r{number}", [number % 7 + 1] * prompt, answer)
        respecify(made, ttft_target=target)
        made.arrival_time = harness.now
        harness.scheduler.add(made)
        if harness.scheduler.has_work():
            harness.step()
    harness.run()


def test_what_was_late_behind_a_long_step_is_in_time_again() -> None:
    """The next step begins a tenth of a second later, and ends in time for the second one."""
    times = StepTimes()
    policy = DeadlinePolicy(times)
    policy.push(request("lost", 0, 0.0, 1.0))
    policy.push(request("again", 1, 4.0, 2.0))
    policy.push(request("fresh", 2, 4.0, 9.0))
    times.now, times.last_seconds = 5.0, 2.0
    first = policy.peek()
    assert first is not None and first.request_id == "fresh"
    times.now, times.last_seconds = 5.1, 0.1
    assert order(policy) == ["again", "fresh", "lost"]


def test_many_changes_of_mind_leave_nothing_behind() -> None:
    times = StepTimes()
    policy = DeadlinePolicy(times)
    for number in range(100):
        policy.push(request(str(number), number, 0.0, 5.0 + number / 100))
    for round_ in range(50):
        times.now, times.last_seconds = 1.0, float(10 * (round_ % 2))
        assert policy.peek() is not None and len(policy) == 100
    times.last_seconds = 10.0
    while len(policy):
        policy.pop()
    assert policy.peek() is None and len(policy._soonest_back) <= SPARE


def test_time_before_the_queue_counts() -> None:
    """A deadline runs from when the call arrived, not from when it was encoded and queued."""
    policy = DeadlinePolicy(StepTimes())
    policy.push(request("queued first", 0, 0.0, 1.0))
    slow = request("came first", 1, 0.1, 1.0)
    respecify(slow, waited=0.3)
    policy.push(slow)
    assert order(policy) == ["came first", "queued first"]
