"""A run of equal decode steps that was taken at once, as the simulator's statistics see it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from twostroke.core.request import Request
from twostroke.core.step import Decision


@dataclass(frozen=True, slots=True)
class ObservedRun:
    """Consecutive steps in each of which every running request decoded one token.

    Attributes:
        times: When the first begins, then when each ends: one more than there are steps.
        requests: All that ran, in the plan's order, as the last step left them.
        decisions: Why waiting requests wait; the same in each step.
        num_waiting: Requests that wait.
        blocks: Free and cached blocks after each step, before the last one frees any.
    """

    times: Sequence[float]
    requests: Sequence[Request]
    decisions: Sequence[Decision]
    num_waiting: int
    blocks: Sequence[tuple[int, int]]

    @property
    def num_steps(self) -> int:
        return len(self.times) - 1

    @property
    def ended(self) -> list[Request]:
        """Requests that ended with the last step."""
        return [request for request in self.requests if request.finish_reason is not None]


@runtime_checkable
class RunObserver(Protocol):
    """An ``Observer`` that need not see each step. Where another one watches, none is jumped."""

    def on_run(self, run: ObservedRun) -> None:
        """Several steps were taken at once."""
