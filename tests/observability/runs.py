"""Steps of a made-up engine run, for the tests of everything that observes steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tests.specs import resolved
from twostroke.core.errors import ErrorMessage, TwostrokeError
from twostroke.core.request import FinishReason, Request
from twostroke.core.step import Decision, Reason, ScheduledRequest, StepPlan, StepResult
from twostroke.observability.events import SchedulerStats, StepEvent
from twostroke.observability.observer import ObservedStep


def make_request(
    request_id: str = "a", num_prompt_tokens: int = 6, arrival_time: float = 0.0
) -> Request:
    return Request(resolved(request_id, range(num_prompt_tokens)), arrival_time=arrival_time)


def observe(
    step: int,
    time: float,
    shares: Sequence[tuple[Request, int, int, int]],
    *,
    duration: float = 0.1,
    decisions: Sequence[Decision] = (),
    finished: Sequence[tuple[Request, FinishReason]] = (),
    error: TwostrokeError | None = None,
    stats: SchedulerStats | None = None,
    prefix: tuple[int, int] = (0, 0),
) -> ObservedStep:
    """One step. Each share is a request, the first position, the number of tokens and how many new
    ones it got; ``prefix``: tokens looked up and found.
    """
    plan = StepPlan(step=step, time=time, decisions=list(decisions))
    result = StepResult(timings={"forward": duration / 2, "schedule": 0.001})
    for request, start, num_tokens, num_new in shares:
        plan.add(ScheduledRequest(request.request_id, start, num_tokens, num_new > 0, 2))
        if request.first_scheduled_time is None:
            request.first_scheduled_time = time
        if error is not None:
            result.errors[request.request_id] = ErrorMessage.of(error)
            result.failure = error.message
        elif num_new:
            result.token_ids[request.request_id] = [7] * num_new
            # As Scheduler.update does before the event is built.
            request.token_ids.extend([7] * num_new)
    for request, reason in finished:
        request.finish_reason = reason
    stats = stats or SchedulerStats(num_running=len(shares), total_blocks=10, free_blocks=6)
    observed = ObservedStep(
        plan,
        result,
        [share[0] for share in shares],
        [],
        lambda: time + duration,
        lambda: stats,
        token_budget=8,
        prefix_queries=prefix[0],
        prefix_hits=prefix[1],
    )
    assert observed.event.step == step  # made now: requests change with the next step
    return observed


def make_step(
    step: int,
    time: float,
    shares: Sequence[tuple[Request, int, int, int]],
    *,
    decisions: Sequence[Decision] = (),
    error: TwostrokeError | None = None,
    stats: SchedulerStats | None = None,
) -> StepEvent:
    """The record of one step, see ``observe``."""
    return observe(step, time, shares, decisions=decisions, error=error, stats=stats).event


def take_steps() -> Iterator[ObservedStep]:
    """Each as it happens: what a step does to its requests, the earlier ones do not show.

    Two requests: `a` is prefilled in two chunks and decodes; `b` waits, runs, is preempted, and
    comes back.
    """
    a, b = make_request("a", 6, 0.5), make_request("b", 2, 0.6)
    preempted = Decision("b", Reason.PREEMPTED, by="a")
    waits = Decision("b", Reason.TOKEN_BUDGET, behind=0)
    yield observe(0, 1.0, [(a, 0, 4, 0)], decisions=[waits])
    yield observe(1, 1.1, [(a, 4, 2, 1), (b, 0, 2, 1)])
    yield observe(2, 1.2, [(a, 6, 1, 1)], decisions=[preempted])
    yield observe(3, 1.3, [(a, 7, 1, 1), (b, 0, 3, 1)], finished=[(a, FinishReason.STOP)])
    yield observe(4, 1.4, [(b, 3, 1, 1)], finished=[(b, FinishReason.LENGTH)])


def make_steps() -> list[ObservedStep]:
    """All steps, whose requests are as they are in the end."""
    return list(take_steps())


def make_run() -> list[StepEvent]:
    """The records of ``make_steps``."""
    return [step.event for step in make_steps()]
