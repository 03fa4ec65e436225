"""What the engine did for the requests that are traced: noted step by step, without spans yet."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from twostroke.core.output import RequestOutput
from twostroke.core.request import FinishReason, Request
from twostroke.core.sampling_params import SamplingParams
from twostroke.core.step import Decision, Reason, ScheduledRequest, StepPlan
from twostroke.observability.observer import ObservedStep

# A decoding request is looked at in each 32nd step; of a long answer every second sample is
# dropped as often as it takes to keep no more than this.
SAMPLED_STEPS = 32
MAX_SAMPLES = 64
# What a request keeps of each other kind: a prompt of 100,000 tokens has 200 chunks of 512.
MAX_NOTES = 256


class PromptChunk(NamedTuple):
    """A piece of a prompt (or of what a preemption lost) in one step; seconds on its clock."""

    began: float
    ended: float
    step: int
    start: int
    num_tokens: int
    num_running: int


class Progress(NamedTuple):
    """How far a decoding request was after a step."""

    time: float
    step: int
    num_output_tokens: int
    num_running: int


class Delay(NamedTuple):
    """A step that held a request back, or preempted it, and why."""

    time: float
    step: int
    reason: Reason
    by: str | None


class Sampling(NamedTuple):
    """The parameters of which a span tells.

    Not all: a schema or a table of biases may be large, and thousands of traces wait where no
    collector takes them.
    """

    n: int
    temperature: float
    top_p: float
    top_k: int
    seed: int | None
    max_tokens: int | None
    frequency_penalty: float
    presence_penalty: float

    @classmethod
    def of(cls, params: SamplingParams) -> Sampling:
        return cls(*(getattr(params, name) for name in cls._fields))


@dataclass(slots=True)
class Timeline:
    """One sample's way through the engine; times in seconds on the engine's clock.

    Attributes:
        delays: One for each change of the reason.
        ended: None until it has ended, and for ever where the server could not wait for that.
        message: The message of the error that ended it.
    """

    request_id: str
    index: int
    arrival: float
    params: Sampling
    num_prompt_tokens: int
    num_output_tokens: int = 0
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    chunks: list[PromptChunk] = field(default_factory=list)
    progress: list[Progress] = field(default_factory=list)
    delays: list[Delay] = field(default_factory=list)
    first_scheduled: float | None = None
    first_token: float | None = None
    ended: float | None = None
    finish_reason: FinishReason | None = None
    message: str = ""
    stride: int = SAMPLED_STEPS

    @classmethod
    def of(cls, request: Request) -> Timeline:
        """The timeline of a request that was queued."""
        return cls(
            request.request_id,
            request.spec.index,
            request.arrival_time,
            Sampling.of(request.params),
            request.num_prompt_tokens,
        )

    def delay(self, delay: Delay) -> None:
        last = self.delays[-1] if self.delays else None
        repeated = last is not None and (last.reason, last.by) == (delay.reason, delay.by)
        if len(self.delays) < MAX_NOTES and (not repeated or delay.reason is Reason.PREEMPTED):
            self.delays.append(delay)

    def sample(self, progress: Progress) -> None:
        """Keep it, unless enough is kept of this part of the answer."""
        if len(self.progress) >= MAX_SAMPLES:
            self.stride *= 2
            self.progress = [p for p in self.progress if p.step % self.stride == 0]
        if progress.step % self.stride == 0:
            self.progress.append(progress)

    def end(self, request: Request, time: float, message: str = "") -> None:
        self.first_scheduled = request.first_scheduled_time
        self.first_token = request.first_token_time
        self.num_output_tokens = request.num_output_tokens
        self.num_cached_tokens = request.num_cached_tokens
        self.num_preemptions = request.num_preemptions
        self.finish_reason = request.finish_reason
        self.message = message
        self.ended = time


class TimelineKeeper(Protocol):
    """The trace of a call: keeps the timelines of its samples."""

    def keep(self, timeline: Timeline) -> bool:
        """Whether it wants this one; called on the engine's thread."""


class TimelineObserver:
    """Implements ``Observer``: fills in the timelines of the calls in ``followed``.

    A step costs a look at the requests that are being prefilled, not at those that decode.

    Args:
        followed: The traces by the id that the client knows. The server adds a call before it
            submits it, and takes it out once it has ended.
    """

    def __init__(self, followed: Mapping[str, TimelineKeeper]) -> None:
        self._followed = followed
        self._live: dict[str, Timeline] = {}
        self._requests: dict[str, Request] = {}  # decoding, or being prefilled
        self._prefilling: dict[str, Timeline] = {}

    def on_add(self, requests: Sequence[Request]) -> None:
        """Follow the samples of a call that is traced."""
        keeper = self._followed.get(requests[0].spec.parent_id) if requests else None
        if keeper is None:
            return
        for request in requests:
            timeline = Timeline.of(request)
            if keeper.keep(timeline):
                self._live[request.request_id] = timeline
                self._requests[request.request_id] = request

    def on_step(self, step: ObservedStep) -> None:
        if not self._live:
            return
        plan = step.plan
        for decision in plan.decisions:
            self._delay(decision, plan)
        for request_id in plan.new_requests:
            if (timeline := self._live.get(request_id)) is not None:
                self._prefilling[request_id] = timeline
        for request_id in [*self._prefilling]:
            if (share := plan.scheduled.get(request_id)) is not None:
                self._add_chunk(share, step)
        if plan.step % SAMPLED_STEPS == 0:
            self._sample(plan.scheduled, len(plan.scheduled), plan.step, step.finished)
        for request in step.ended:
            if request.request_id in self._live:
                error = step.result.errors.get(request.request_id)
                message = step.result.failure or "" if error is None else error.message
                self._end(request, step.finished, message)

    def on_end(self, requests: Sequence[Request], outputs: Sequence[RequestOutput]) -> None:
        for request, output in zip(requests, outputs):
            if request.request_id in self._live:
                time = request.finish_time if request.finish_time is not None else 0.0
                message = "" if output.error is None else output.error.message
                self._end(request, time, message)

    def close(self) -> None:
        """Nothing more is noted."""
        self._live.clear()
        self._requests.clear()
        self._prefilling.clear()

    def _delay(self, decision: Decision, plan: StepPlan) -> None:
        if (timeline := self._live.get(decision.request_id)) is not None:
            timeline.delay(Delay(plan.time, plan.step, decision.reason, decision.by))
            if decision.reason is Reason.PREEMPTED:
                self._prefilling.pop(decision.request_id, None)

    def _add_chunk(self, share: ScheduledRequest, step: ObservedStep) -> None:
        timeline, plan = self._prefilling[share.request_id], step.plan
        if len(timeline.chunks) < MAX_NOTES:
            running = len(plan.scheduled)
            timeline.chunks.append(
                PromptChunk(
                    step.began, step.finished, plan.step, share.start, share.num_tokens, running
                )
            )
        if share.samples:
            del self._prefilling[share.request_id]

    def _sample(self, scheduled: Container[str], running: int, number: int, time: float) -> None:
        for request_id, timeline in self._live.items():
            if request_id in scheduled and request_id not in self._prefilling:
                num_tokens = self._requests[request_id].num_output_tokens
                timeline.sample(Progress(time, number, num_tokens, running))

    def _end(self, request: Request, time: float, message: str = "") -> None:
        timeline = self._live.pop(request.request_id, None)
        self._requests.pop(request.request_id, None)
        self._prefilling.pop(request.request_id, None)
        if timeline is not None:
            timeline.end(request, time, message)
