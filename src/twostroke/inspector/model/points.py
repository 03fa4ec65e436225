"""Steps as points of the roofline: what they computed and moved, in the time that they took."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import median

import msgspec

from twostroke.observability.events import StepEvent
from twostroke.observability.frames.columns import StepFrame
from twostroke.questions.model_facts import StepCosts, StepWork

MAX_POINTS = 512  # steps in one answer: each takes some 50 microseconds
BATCHES = tuple(sorted({*(2**n for n in range(9)), 3, 6, 12, 24, 48, 96, 192}))


class Points(msgspec.Struct):
    """A step a row.

    Attributes:
        prompt: Tokens of prompts, or of what is computed again after a preemption.
        requests: That decoded.
        context: Tokens that these attended to, all together.
        seconds: That the step took, whatever it waited for.
        estimate: By the cost model; ``None`` where it knows no such device.
    """

    step: list[int] = []
    prompt: list[int] = []
    requests: list[int] = []
    context: list[int] = []
    seconds: list[float] = []
    flops: list[float] = []
    bytes: list[float] = []
    estimate: list[float | None] = []


class Group(msgspec.Struct):
    """Steps of one kind that a measurement ran.

    Attributes:
        batch: That was wanted; 0 is prefill.
        prompt: Tokens of prompts; 0 of decode.
        requests: That decoded.
        context: Mean tokens that a request attended to.
        steps: How many there were; the rest are medians of them.
    """

    batch: int
    prompt: int
    requests: int
    context: float
    steps: int
    seconds: float
    flops: float
    bytes: float
    estimate: float | None
    binding: str


class Paths(msgspec.Struct):
    """Where steps lie by the cost model: decode by batch, and one prompt.

    Attributes:
        requests: Batches; the other columns have an entry for each.
        binding: What each mostly waits for.
        prefill: The entries for a step that computes ``prompt`` tokens of one prompt.
    """

    context: int
    prompt: int
    requests: list[int]
    flops: list[float]
    bytes: list[float]
    seconds: list[float | None]
    low: list[float | None]
    high: list[float | None]
    binding: list[str]
    prefill: dict[str, float | str | None]


def points_of(frame: StepFrame, costs: StepCosts) -> Points:
    """The unmerged steps of a frame that shows all requests; those without tokens are left out."""
    works: dict[int, list[int]] = {}
    for index, row in enumerate(frame.shares.row):
        works.setdefault(row, []).append(index)
    points, steps, shares = Points(), frame.steps, frame.shares
    for row, indices in works.items():
        if steps.span[row] != 1 or steps.duration[row] <= 0:
            continue
        work = _work(
            (
                shares.start[index],
                shares.tokens[index],
                shares.prompt[index],
                shares.drafts[index],
                shares.new[index],
            )
            for index in indices
        )
        cost = costs.cost(work)
        points.step.append(steps.step[row])
        points.prompt.append(sum(new for new, _ in work.chunks))
        points.requests.append(work.requests)
        points.context.append(work.context)
        points.seconds.append(steps.duration[row])
        points.flops.append(cost.flops)
        points.bytes.append(cost.bytes)
        points.estimate.append(cost.seconds)
    return points


def work_of(event: StepEvent) -> StepWork:
    """What a recorded step computed."""
    return _work(
        (s.start, s.num_tokens, s.num_prompt_tokens, s.num_drafts, s.num_new_tokens)
        for s in event.scheduled
    )


def group_steps(batch: int, events: Sequence[StepEvent], costs: StepCosts) -> Group:
    """One point for steps of one kind, at least one."""
    works = [work_of(event) for event in events]
    made = [costs.cost(work) for work in works]

    def middle(of: Callable[[int], float]) -> float:
        return median(of(index) for index in range(len(events)))

    estimates = [cost.seconds for cost in made if cost.seconds is not None]
    requests = round(middle(lambda index: works[index].requests))
    return Group(
        batch=batch,
        prompt=round(middle(lambda index: sum(new for new, _ in works[index].chunks))),
        requests=requests,
        context=middle(lambda index: works[index].context / max(1, requests)),
        steps=len(events),
        seconds=middle(lambda index: events[index].duration),
        flops=middle(lambda index: made[index].flops),
        bytes=middle(lambda index: made[index].bytes),
        estimate=median(estimates) if estimates else None,
        binding=made[-1].binding,
    )


def paths(costs: StepCosts, context: int, prompt: int, most: int) -> Paths:
    """Decode steps over ``context`` tokens each, up to ``most`` requests, and one prompt's step."""
    requests = [batch for batch in BATCHES if batch < most] + [most]
    made = [costs.cost(StepWork(batch, batch * context, (), batch)) for batch in requests]
    prefill = costs.cost(StepWork(0, 0, ((prompt, 0),), 1))
    return Paths(
        context,
        prompt,
        requests,
        [cost.flops for cost in made],
        [cost.bytes for cost in made],
        [cost.seconds for cost in made],
        [cost.low for cost in made],
        [cost.high for cost in made],
        [cost.binding for cost in made],
        msgspec.to_builtins(prefill),
    )


def _work(shares: Iterable[tuple[int, int, int, int, int]]) -> StepWork:
    """The work of requests (first position, tokens, of these prompt tokens, drafts, new tokens)."""
    requests = context = sampled = drafts = 0
    chunks = []
    for start, tokens, prompt, guessed, new in shares:
        sampled += new > 0
        if prompt == 0 and tokens == 1 + guessed:
            requests += 1
            context += start + 1
            drafts += guessed
        else:
            chunks.append((tokens, start))
    return StepWork(requests, context, tuple(chunks), sampled, drafts)
