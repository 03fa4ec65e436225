"""A call's way through engines of other processes: which got it, why, and what each did for it.

The front end sees all of this: it sends the request, and gets every step event back. So what an
engine had done before it was killed is known, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple, Protocol

from twostroke.observability.tracing.timelines import MAX_NOTES, Timeline


class ChosenEngine(NamedTuple):
    """A router's choice of an engine.

    Attributes:
        began: When it began to choose, in seconds on the front end's clock.
        reason: A ``RouteReason``, or why the request leaves another engine.
        prefix_tokens: Tokens of its prompt that an engine got before.
        loads: Unfinished requests of each engine that could be chosen.
    """

    began: float
    reason: str
    prefix_tokens: int
    loads: Mapping[str, int]


class Outcome(str, Enum):
    """How an engine's part of a call ended."""

    ENDED = "ended"
    ABORTED = "aborted"
    FAILED = "failed"
    LOST = "lost"  # the engine ended
    HANDED_ON = "handed_on"


@dataclass(slots=True)
class Attempt:
    """One engine's part of a call; times in seconds on the front end's clock.

    Attributes:
        engine, model: Labels of the engine's metrics.
        began: When the request was sent to it.
        choice: Why it was this one, where there are several.
        ended: None until it has.
        message: Why it was lost.
        timelines: One for each sample that is followed.
    """

    engine: str
    model: str
    began: float
    choice: ChosenEngine | None = None
    ended: float | None = None
    outcome: Outcome | None = None
    message: str = ""
    timelines: list[Timeline] = field(default_factory=list)

    @property
    def has_failed(self) -> bool:
        """Whether the answer is not its own to the end."""
        return self.outcome in (Outcome.LOST, Outcome.FAILED)

    def end(self, outcome: Outcome, time: float, message: str = "") -> None:
        self.outcome, self.ended, self.message = outcome, time, message
        for timeline in self.timelines:
            if timeline.ended is None:
                timeline.ended = time


class AttemptKeeper(Protocol):
    """The trace of a call that engines of other processes compute."""

    choice: ChosenEngine | None

    def open_attempt(
        self, engine: str, model: str, time: float, sample_ids: Sequence[str], *, resumed: bool
    ) -> tuple[Attempt, Sequence[str]] | None:
        """A request has been sent to an engine: its part, and the samples that are followed.

        ``None``: nothing more is kept. ``resumed``: another engine had it before.
        """


def joined_timelines(attempts: Sequence[Attempt]) -> list[Timeline]:
    """One timeline for each sample, as if one engine had done all of it."""
    whole: dict[str, Timeline] = {}
    for attempt in attempts:
        for part in attempt.timelines:
            former = whole.get(part.request_id)
            whole[part.request_id] = part if former is None else _joined(former, part)
    return list(whole.values())


def _joined(first: Timeline, then: Timeline) -> Timeline:
    scheduled = first if first.first_scheduled is not None else then
    return replace(
        first,
        num_output_tokens=first.num_output_tokens + then.num_output_tokens,
        num_preemptions=first.num_preemptions + then.num_preemptions,
        num_cached_tokens=scheduled.num_cached_tokens,
        delays=[*first.delays, *then.delays][:MAX_NOTES],
        first_scheduled=scheduled.first_scheduled,
        first_token=then.first_token if first.first_token is None else first.first_token,
        ended=then.ended,
        finish_reason=then.finish_reason,
        message=then.message,
    )
