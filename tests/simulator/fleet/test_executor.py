"""The simulated executor and its clock: shapes of steps, time, drafts."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.simulator.fleets import LinearCost, make_executor, make_fleet, run_fleet, specs
from tests.specs import resolved
from twostroke.core.config import CacheConfig, SchedulerConfig
from twostroke.core.speculation_config import Speculation
from twostroke.core.step import NewRequest, ScheduledRequest, StepPlan
from twostroke.simulator.deployment.deployment import deploy
from twostroke.simulator.deployment.options import DeploymentOptions
from twostroke.simulator.fleet.clock import VirtualClock
from twostroke.simulator.fleet.executor import SimulatedExecutor
from twostroke.simulator.jumping.decode_curve import Bound, DecodeCurve, RunTimes
from twostroke.simulator.results.columns import to_columns
from twostroke.spec_decode.synthetic import SyntheticAcceptance
from twostroke.timing.step_shape import StepShape


def share(num_known: int, start: int, num_tokens: int) -> ScheduledRequest:
    """A request's share, where so many of its tokens are known."""
    name = f"{num_known}-{start}-{num_tokens}"
    return ScheduledRequest(name, start, num_tokens, start + num_tokens == num_known)


def plan_of(*shares: ScheduledRequest, num_prompt_tokens: int = 10) -> StepPlan:
    plan = StepPlan(step=0, time=0.0)
    for item in shares:
        plan.add(item)
        spec = resolved(item.request_id, [0] * num_prompt_tokens)
        plan.new_requests[item.request_id] = NewRequest(spec)
    return plan


def shape_of(plan: StepPlan) -> StepShape:
    executor = make_executor(acceptance=SyntheticAcceptance(1.0))
    executor.execute(plan)
    return executor.last_shape


def test_shape_of_a_mixed_step() -> None:
    plan = plan_of(share(13, 12, 1), share(21, 20, 1), share(10, 4, 6), share(40, 8, 16))
    # Decoders see 13 and 21 tokens; the second chunk does not reach the end of its prompt, so
    # nothing is drawn.
    assert shape_of(plan) == StepShape(2, 34, ((6, 4), (16, 8)), 3)


def test_drafts_are_verified_beside_the_token_of_a_decoding_request() -> None:
    drafted, recomputed = share(14, 11, 3), share(14, 11, 3)
    drafted.draft_token_ids, drafted.max_new_drafts = [0, 0], 4
    assert shape_of(plan_of(drafted)) == StepShape(1, 14, (), 1, drafts=2, draft_rounds=4)
    assert shape_of(plan_of(recomputed)) == StepShape(0, 0, ((3, 11),), 1)


def test_a_draft_model_computes_a_prompt_when_it_first_drafts() -> None:
    """In the step that ends it, all of it but its cached prefix; then nothing but its rounds."""
    executor = make_executor(acceptance=SyntheticAcceptance(1.0))

    def step(start: int, count: int, known: int, max_drafts: int) -> StepShape:
        part = ScheduledRequest("r", start, count, start + count == known)
        part.max_new_drafts = max_drafts
        plan = plan_of(part)
        executor.execute(plan)
        return executor.last_shape

    assert step(4, 6, 16, 0).draft_prefill == ()  # behind a cached prefix of 4
    assert step(10, 6, 16, 3).draft_prefill == ((12, 4),)
    assert step(16, 1, 17, 3).draft_prefill == ()
    assert step(17, 1, 18, 0).draft_prefill == ()  # does not draft for a while
    assert step(18, 1, 19, 0).draft_prefill == ()
    assert step(19, 1, 20, 3).draft_prefill == ((3, 17),)
    assert step(0, 20, 21, 0).draft_prefill == ()  # preempted: from the beginning
    assert step(20, 1, 21, 3).draft_prefill == ((21, 0),)


def test_a_step_says_what_was_accepted_and_how_long_drafting_took() -> None:
    drafted = share(14, 11, 3)
    drafted.draft_token_ids, drafted.max_new_drafts = [0, 0], 4
    executor = make_executor(acceptance=SyntheticAcceptance(1.0))
    result = executor.execute(plan_of(drafted))
    [tokens] = result.token_ids.values()
    assert (len(tokens), [*result.num_accepted_drafts.values()]) == (3, [2])
    assert [len(drafts) for drafts in result.draft_token_ids.values()] == [4]
    assert result.timings["draft"] == pytest.approx(4 * LinearCost().draft_round)
    assert sum(result.timings.values()) == pytest.approx(result.duration)


@pytest.mark.parametrize("bound", ["low", "seconds", "high"])
def test_time_is_what_the_cost_model_says(bound: Bound) -> None:
    info = make_executor().info
    executor = SimulatedExecutor(info, LinearCost(), VirtualClock(), bound=bound)
    executor.clock.advance_to(5.0)
    result = executor.execute(plan_of(share(13, 12, 1)))
    expected = getattr(LinearCost().step(StepShape(1, 13, (), 1)), bound)
    assert result.duration == pytest.approx(expected)
    assert executor.clock() == 5.0 + result.duration


def test_the_clock_never_falls() -> None:
    clock = VirtualClock()
    clock.advance(2.0)
    clock.advance_to(1.0)
    assert clock() == 2.0


def test_a_run_ends_with_the_step_that_reaches_the_time() -> None:
    executor = make_executor()
    one = LinearCost().step(StepShape(2, 50, (), 2)).seconds
    for steps, until, expected in (
        (10, 0.0, 1),
        (10, 2.5 * one, 3),
        (10, 1e9, 10),
        (500, 99.5 * one, 100),
    ):
        run = executor.decode_run(2, 50, steps, until)
        times, bindings = run.times, run.bindings
        assert len(times) == expected + 1
        assert sum(count for _, count in bindings) == expected
    assert executor.clock() == 0.0


@given(
    st.integers(1, 9),
    st.integers(0, 3000),
    st.integers(1, 400),
    st.floats(0, 2),
    st.sampled_from(["low", "seconds"]),
)
@settings(max_examples=100, deadline=None)
def test_a_run_has_the_time_stamps_of_its_steps(
    requests: int, more: int, steps: int, until: float, bound: Bound
) -> None:
    """Whatever pieces of the curve it crosses, and wherever it is cut short."""
    context = requests + more
    curve = DecodeCurve(LinearCost(), bound)
    run = curve.run(requests, context, steps, 0.3, until)
    times, bindings = run.times, run.bindings
    assert run.durations == [
        curve.piece(requests, c).at(c) for c in _contexts(context, requests, run)
    ]
    now, expected, waits = 0.3, [0.3], []
    for step in range(steps):
        piece = curve.piece(requests, context + step * requests)
        assert piece.start <= context + step * requests < piece.end
        now += piece.at(context + step * requests)
        expected.append(now)
        waits.append(piece.binding)
        if now >= until:
            break
    assert times == expected
    assert [name for name, count in bindings for _ in range(count)] == waits


def _contexts(context: int, requests: int, run: RunTimes) -> list[int]:
    return [context + step * requests for step in range(len(run.durations))]


def test_steps_after_one_that_prefills_are_told_apart_while_it_matters() -> None:
    executor = make_executor(settling=2)
    distances = []
    for settled, item in (
        (True, share(10, 0, 10)),
        (False, share(11, 10, 1)),
        (False, share(12, 11, 1)),
        (True, share(13, 12, 1)),
        (True, share(10, 0, 10)),
        (False, share(11, 10, 1)),
    ):
        assert executor.settled is settled
        executor.execute(plan_of(item))
        distances.append(executor.last_shape.since_prefill)
    assert distances == [0, 1, 2, 0, 0, 1]


def test_a_step_after_idling_is_told_apart() -> None:
    """Whether it prefills or not, and once only: the step after it follows at once, as do those
    after a run.
    """
    executor = make_executor(waking=True)
    after_idle = []
    for pause, item in (
        (0.0, share(10, 0, 10)),
        (0.5, share(11, 10, 1)),
        (0.0, share(12, 11, 1)),
        (0.5, share(10, 0, 10)),
    ):
        executor.clock.advance_to(executor.clock() + pause)
        assert executor.settled is not (pause > 0)
        executor.execute(plan_of(item))
        after_idle.append(executor.last_shape.after_idle)
    assert after_idle == [False, True, False, True]
    executor.clock.advance_to(executor.decode_run(1, 11, 5, 1e9).times[-1])
    assert executor.settled
    executor.clock.advance(0.1)
    assert not executor.settled


def test_the_curve_is_the_cost_model_to_a_part_in_ten_thousand() -> None:
    """On real hardware sheets, windows included: its straight lines are close enough not to
    matter.
    """
    for model in ("llama-3.1-8b", "deepseek-v3"):
        cost = deploy(
            DeploymentOptions(model=model, gpu="h200", tp=8), CacheConfig(), SchedulerConfig()
        ).cost
        curve = DecodeCurve(cost, "seconds")
        for requests in (1, 7, 64):
            for context in range(requests, 4000 * requests, 611 * requests + 13):
                exact = cost.step(StepShape(requests, context, (), requests)).seconds
                assert curve.piece(requests, context).at(context) == pytest.approx(exact, rel=1e-4)


@pytest.mark.parametrize(("rate", "tokens"), [(0.0, 4), (0.7, 4), (0.9, 2), (1.0, 3)])
def test_accepted_drafts_have_the_expected_mean(rate: float, tokens: int) -> None:
    acceptance = SyntheticAcceptance(rate, seed=1)
    drawn = [
        acceptance.num_accepted(request, position, tokens)
        for request in range(60)
        for position in range(1, 51)
    ]
    assert set(drawn) <= set(range(tokens + 1))
    expected = tokens if rate == 1 else (1 - rate ** (tokens + 1)) / (1 - rate) - 1
    assert sum(drawn) / len(drawn) == pytest.approx(expected, abs=0.08)
    assert drawn[:50] == [acceptance.num_accepted(0, position, tokens) for position in range(1, 51)]


def test_speculation_gives_several_tokens_a_step() -> None:
    """Output lengths stay exact, and all drafts accepted means a (k + 1)th of the steps."""
    workload = specs((0.0, 8, 41), (0.0, 8, 40))
    plain = make_fleet(workload, num_blocks=100)[0].run()
    speculation = Speculation(
        method="ngram", num_speculative_tokens=3, adaptive=False, acceptance_rate=1.0
    )
    fleet, (replica,) = make_fleet(workload, num_blocks=100, speculation=speculation)
    result = fleet.run()
    assert [request.output_tokens for request in result.requests] == [41, 40]
    assert len(replica.log) == 11  # one token with the prompt, then four a step
    assert len(plain.logs[0]) == 41
    assert to_columns([replica.log]).new_tokens.sum() == 81
    replica.kv.check_integrity()
    # Drafts that could not all be used are not made: the last step of each verifies fewer.
    assert 3 * 2 * 8 <= to_columns([replica.log]).drafts.sum() <= 3 * 2 * 10


@pytest.mark.parametrize("jump", [True, False])
def test_the_depth_chooses_itself_as_in_the_live_engine(jump: bool) -> None:
    """Drafts that come true are made, others hardly: by the same code, on simulated times."""
    lengths = {}
    for rate in (0.0, 0.9):
        speculation = Speculation(
            method="draft", model="m", num_speculative_tokens=4, acceptance_rate=rate
        )
        workload = specs(*((0.0, 8, 300) for _ in range(4)))
        fleet, (replica,) = make_fleet(
            workload, num_blocks=1000, speculation=speculation, jump=jump
        )
        result = fleet.run()
        assert [request.output_tokens for request in result.requests] == [300] * 4
        lengths[rate] = replica.log.end[-1]
    plain = run_fleet(specs(*((0.0, 8, 300) for _ in range(4))), num_blocks=1000)
    assert lengths[0.9] < 0.5 * plain.logs[0].end[-1]
    assert lengths[0.0] < 1.02 * plain.logs[0].end[-1]
