"""Plans and results of a made-up engine run, for tests of what reads step events."""

from __future__ import annotations

from collections.abc import Sequence

from twostroke.core.errors import TwostrokeError
from twostroke.core.request import FinishReason, Request
from twostroke.core.sampling_params import SamplingParams
from twostroke.core.step import Decision, Reason, ScheduledRequest, StepPlan, StepResult
from twostroke.observability.events import SchedulerStats, StepEvent, build_step_event


def make_request(
    request_id: str = "a", num_prompt_tokens: int = 6, arrival_time: float = 0.0
) -> Request:
    return Request(
        request_id=request_id,
        token_ids=list(range(num_prompt_tokens)),
        params=SamplingParams(),
        num_prompt_tokens=num_prompt_tokens,
        max_total_tokens=100,
        arrival_time=arrival_time,
    )


def make_step(
    step: int,
    time: float,
    shares: Sequence[tuple[Request, int, int, int]],
    *,
    duration: float = 0.1,
    decisions: Sequence[Decision] = (),
    finished: Sequence[tuple[str, FinishReason]] = (),
    error: TwostrokeError | None = None,
    stats: SchedulerStats | None = None,
) -> StepEvent:
    """One step; each share is a request, its first position, its tokens, and new ones."""
    plan = StepPlan(step=step, time=time, decisions=list(decisions))
    for request, start, num_tokens, _ in shares:
        plan.add(ScheduledRequest(request, start, num_tokens, [0, 1], 0))
        if request.first_scheduled_time is None:
            request.first_scheduled_time = time
    result = StepResult(timings={"forward": duration / 2})
    for request, _, _, num_new in shares:
        if error is not None:
            result.errors[request.request_id] = error
            result.failure = error.message
        elif num_new:
            result.token_ids[request.request_id] = [7] * num_new
            # As Scheduler.update does before the event is built.
            request.token_ids.extend([7] * num_new)
    stats = stats or SchedulerStats(num_running=len(shares), total_blocks=10, free_blocks=6)
    return build_step_event(
        plan,
        result,
        started=time,
        finished=time + duration,
        stats=stats,
        token_budget=8,
        finished_requests=finished,
        timings={"schedule": 0.001},
    )


def make_run() -> list[StepEvent]:
    """Two requests: `a` is prefilled in two chunks; `b` waits, is preempted, comes back."""
    a, b = make_request("a", 6, 0.5), make_request("b", 2, 0.6)
    preempted = Decision("b", Reason.PREEMPTED, by="a")
    waits = Decision("b", Reason.TOKEN_BUDGET, behind=0)
    return [
        make_step(0, 1.0, [(a, 0, 4, 0)], decisions=[waits]),
        make_step(1, 1.1, [(a, 4, 2, 1), (b, 0, 2, 1)]),
        make_step(2, 1.2, [(a, 6, 1, 1)], decisions=[preempted]),
        make_step(3, 1.3, [(a, 7, 1, 1), (b, 0, 3, 1)], finished=[("a", FinishReason.STOP)]),
        make_step(4, 1.4, [(b, 3, 1, 1)], finished=[("b", FinishReason.LENGTH)]),
    ]
