"""Whether a run keeps up with what comes, and its throughput while it is in full swing.

A run has three parts. In the ramp the first requests fill the engine; in the drain no request comes
any more, and the batch shrinks. Between them is the steady window: throughput there is what the
deployment sustains, and what comes and goes there tells whether it keeps up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Literal

from twostroke.simulator.fleet.result import RequestResult
from twostroke.simulator.results.columns import Columns

Verdict = Literal["stable", "backlogged", "overloaded", "undecided"]
# The ramp ends when nine of ten of the first tenth of requests have ended.
FIRST, ENDED = 0.1, 0.9
# More requests come than end: by a twentieth, and by more than chance makes of as many arrivals
# (their number varies by its root).
GROWTH, DEVIATIONS = 0.05, 2.0
# Requests wait during more than half of the window.
WAITING = 0.5
# Without a steady window: so many of those that came in the second half have joined the queue.
JOINED = 0.5


@dataclass(frozen=True, slots=True)
class SteadyState:
    """The steady window of a run; seconds since the start, rates per second of the window.

    Attributes:
        verdict: ``overloaded``: more requests come than end, so the queue grows as long as they
            come. ``backlogged``: some wait during most of the time, but no more and more of them.
        start: End of the ramp.
        end: The last arrival, from which on the run drains. No later than ``start`` if there is no
            steady window.
        arrived: Requests that came in the window.
        ended: Requests that ended in it.
        waiting_share: Share of the window in which requests wait for their first step.
        output_tokens: Tokens generated in it.
        left_waiting: Requests that wait as the last one comes, where that alone decides: the ramp
            has not ended.
    """

    verdict: Verdict
    start: float
    end: float
    arrived: int = 0
    ended: int = 0
    waiting_share: float = 0.0
    output_tokens: int = 0
    left_waiting: int = 0

    @property
    def seconds(self) -> float:
        return max(self.end - self.start, 0.0)

    @property
    def request_throughput(self) -> float | None:
        """Requests that end in a second; ``None`` without a steady window."""
        return self.ended / self.seconds if self.seconds else None

    @property
    def output_throughput(self) -> float | None:
        return self.output_tokens / self.seconds if self.seconds else None

    def describe(self) -> str:
        """The verdict as a sentence."""
        if not self.end and self.verdict == "undecided":
            return "Undecided: no request has ended"
        if not self.end:
            return f"{self.verdict.capitalize()}: all requests come at once"
        if self.verdict == "undecided" and self.end < 2 * self.start:
            return (
                f"Undecided: the first requests have ended at {self.start:.1f} s, and the last came"
                f" at {self.end:.1f} s: too soon to tell whether the queue grows (--num-requests)"
            )
        if self.left_waiting:
            return (
                f"Overloaded: {self.left_waiting:,} requests wait at {self.end:.1f} s, as the last"
                " one comes; the queue grows as long as they come"
            )
        came, ended = self.arrived / self.seconds, self.ended / self.seconds
        rates = f"{came:.2f} requests/s come and {ended:.2f} end"
        window = f"from {self.start:.1f} to {self.end:.1f} s"
        meaning = {
            "stable": "the queue does not grow",
            "undecided": "few wait: too soon to tell whether a queue will grow (--num-requests)",
            "backlogged": f"some wait {self.waiting_share:.0%} of the time, but no more and more",
            "overloaded": "the queue grows as long as they come",
        }[self.verdict]
        return f"{self.verdict.capitalize()}: {rates} {window}; {meaning}"


def steady_state(requests: Sequence[RequestResult], columns: Columns) -> SteadyState:
    """The steady window of a run, from its requests that ended and its steps."""
    if not requests:
        return SteadyState("undecided", 0.0, 0.0)
    by_arrival = sorted(requests, key=lambda request: request.arrival)
    first = sorted(request.finish for request in by_arrival[: max(1, round(FIRST * len(requests)))])
    start, end = first[int(ENDED * (len(first) - 1))], by_arrival[-1].arrival
    if not end:
        return SteadyState("backlogged" if (columns.waiting > 0).any() else "stable", start, end)
    inside = (columns.end > start) & (columns.end <= end)
    seconds = columns.duration[inside]
    waiting_share = float(seconds[columns.waiting[inside] > 0].sum() / max(seconds.sum(), 1e-12))
    arrived = sum(start < request.arrival <= end for request in requests)
    ended = sum(start < request.finish <= end for request in requests)
    growth = arrived - ended
    verdict: Verdict = "stable"
    left_waiting = 0
    if end < 2 * start:
        left_waiting = _queue_that_grows(requests, end)
        verdict = "overloaded" if left_waiting else "undecided"
    elif growth > GROWTH * arrived and growth > DEVIATIONS * sqrt(arrived):
        # Without a queue, more requests are under way: chance, or a batch that still grows.
        verdict = "overloaded" if waiting_share > WAITING else "undecided"
    elif waiting_share > WAITING:
        verdict = "backlogged"
    tokens = int(columns.new_tokens[inside].sum())
    return SteadyState(verdict, start, end, arrived, ended, waiting_share, tokens, left_waiting)


def _queue_that_grows(requests: Sequence[RequestResult], end: float) -> int:
    """Requests that wait as the last one comes, if most of the later ones made the queue longer.

    A ramp is a time of few decode steps beside the prompts: what is too much for it stays so.
    """

    def waiting(time: float) -> int:
        return sum(request.arrival < time < request.scheduled for request in requests)

    came = sum(end / 2 <= request.arrival < end for request in requests)
    at_end = waiting(end)
    joined = at_end - waiting(end / 2)
    return at_end if joined > JOINED * came and joined > DEVIATIONS * sqrt(came) else 0
