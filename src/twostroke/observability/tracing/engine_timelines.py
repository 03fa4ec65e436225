"""What an engine of another process does for traced calls, from the step events it sends."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from twostroke.core.generation_request import ResolvedRequest
from twostroke.core.output import RequestOutput, sample_id
from twostroke.core.step import Reason
from twostroke.observability.events import ScheduledTokens, StepEvent
from twostroke.observability.tracing.attempts import Attempt, AttemptKeeper, ChosenEngine, Outcome
from twostroke.observability.tracing.timelines import (
    MAX_NOTES,
    SAMPLED_STEPS,
    Delay,
    Progress,
    PromptChunk,
    Sampling,
    Timeline,
)


@dataclass(slots=True)
class _Sample:
    """A sample in the engine.

    Attributes:
        num_tokens: Its output tokens, those of former engines too.
        prefilling: Whether its next step computes prompt, or what was lost.
    """

    timeline: Timeline
    num_tokens: int
    prefilling: bool = True


@dataclass(slots=True)
class _Call:
    attempt: Attempt
    samples: dict[int, _Sample] = field(default_factory=dict)


class EngineTimelines:
    """Fills in the timelines of one engine's calls; ``TimelineObserver`` does beside an engine.

    An engine of another machine goes by the clock of its front end, as far as it knows that.
    All methods run on the event loop's thread.

    Args:
        followed: The traces by the id that the client knows.
        clock: That of the front end and its engines.
    """

    def __init__(
        self, followed: Mapping[str, AttemptKeeper], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._followed, self._clock = followed, clock
        self._calls: dict[str, _Call] = {}
        self._live: dict[str, _Sample] = {}

    def begin(
        self, call: ResolvedRequest, so_far: Mapping[int, int] | None, labels: Mapping[str, str]
    ) -> bool:
        """The engine is sent a call; returns whether ``end`` has to follow.

        Args:
            so_far: How many tokens each sample has got of other engines; ``None``: it is new.
            labels: Those of the engine's metrics.
        """
        keeper = self._followed.get(call.request_id)
        # One that waited for the engine to start is sent again: that is one attempt.
        if keeper is None or call.request_id in self._calls:
            return False
        counts = dict.fromkeys(range(call.params.n), 0) if so_far is None else so_far
        ids = {sample_id(call.request_id, index, call.params.n): index for index in counts}
        opened = keeper.open_attempt(
            labels["engine"],
            *(labels["model_name"], self._clock(), list(ids)),
            resumed=so_far is not None,
        )
        if opened is None:
            return False
        attempt, followed = opened
        entry = self._calls[call.request_id] = _Call(attempt)
        for name in followed:
            index = ids[name]
            timeline = Timeline(
                *(name, index, attempt.began, Sampling.of(call.params)),
                num_prompt_tokens=len(call.prompt_token_ids),
            )
            attempt.timelines.append(timeline)
            sample = _Sample(timeline, counts[index])
            self._live[name] = entry.samples[index] = sample
        return True

    def on_step(self, event: StepEvent) -> None:
        """The engine has told of a step."""
        live = self._live
        if not live:
            return
        for preempted in event.preempted:
            if (sample := live.get(preempted.request_id)) is not None:
                sample.timeline.delay(Delay(event.time, event.step, Reason.PREEMPTED, preempted.by))
                sample.timeline.num_preemptions += 1
                sample.prefilling = True
        for held in event.held_back:
            if (sample := live.get(held.request_id)) is not None:
                sample.timeline.delay(Delay(event.time, event.step, held.reason, held.by))
        for started in event.started:
            if (sample := live.get(started.request_id)) is not None:
                sample.timeline.first_scheduled = max(event.time, sample.timeline.arrival)
                sample.timeline.num_cached_tokens = started.num_cached_tokens
        for share in event.scheduled:
            if (sample := live.get(share.request_id)) is not None:
                _note_share(sample, share, event)
        for finished in event.finished:
            if (sample := live.get(finished.request_id)) is not None:
                sample.timeline.ended = event.time + event.duration

    def on_outputs(self, outputs: Sequence[RequestOutput]) -> None:
        """The engine has sent these, after the events of their steps."""
        if not self._calls:
            return
        for output in outputs:
            call = self._calls.get(output.request_id)
            sample = None if call is None else call.samples.get(output.index)
            if sample is None:
                continue
            timeline = sample.timeline
            timeline.num_output_tokens += len(output.token_ids)
            if output.finish_reason is not None:
                timeline.finish_reason = output.finish_reason
                timeline.message = "" if output.error is None else output.error.message
                if timeline.ended is None:  # between two steps
                    timeline.ended = self._clock()
                self._live.pop(timeline.request_id, None)

    def end(self, request_id: str, outcome: Outcome, message: str = "") -> None:
        """The engine has no more to do with a call, or is not waited for."""
        if (call := self._calls.pop(request_id, None)) is None:
            return
        timelines = call.attempt.timelines
        for timeline in timelines:
            self._live.pop(timeline.request_id, None)
        if all(timeline.finish_reason is not None for timeline in timelines):
            outcome, message = Outcome.ENDED, ""
        call.attempt.end(outcome, self._clock(), message)

    def lose(self, message: str) -> None:
        """The engine has ended, and this is why."""
        for request_id in list(self._calls):
            self.end(request_id, Outcome.LOST, message)


class EngineTraces:
    """Follows traced calls to engines of other processes; on the event loop's thread.

    Args:
        followed: The traces by the id that the client knows.
    """

    def __init__(self, followed: Mapping[str, AttemptKeeper]) -> None:
        self._followed = followed

    def note_choice(self, request_id: str, choice: ChosenEngine) -> None:
        """This is why the request goes to the engine that it will be sent to next."""
        if (keeper := self._followed.get(request_id)) is not None:
            keeper.choice = choice

    def timelines(self) -> EngineTimelines:
        """What follows calls into one engine."""
        return EngineTimelines(self._followed)


def _note_share(sample: _Sample, share: ScheduledTokens, event: StepEvent) -> None:
    timeline, running = sample.timeline, len(event.scheduled)
    # The clock of an engine on another machine may be late: nothing begins before it was sent.
    began = max(event.time, timeline.arrival)
    ended = max(event.time + event.duration, began)
    sample.num_tokens += share.num_new_tokens
    if sample.prefilling:
        if len(timeline.chunks) < MAX_NOTES:
            timeline.chunks.append(
                PromptChunk(began, ended, event.step, share.start, share.num_tokens, running)
            )
        sample.prefilling = not share.sampled
    if share.sampled and timeline.first_token is None:
        timeline.first_token = ended
    if event.step % SAMPLED_STEPS == 0 and not sample.prefilling:
        timeline.sample(Progress(ended, event.step, sample.num_tokens, running))
