"""What executors of one worker have in common: they do a whole step at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque

from twostroke.core.step import StepPlan, StepResult


class ImmediateExecutor(ABC):
    """An executor of which a pass is over when it is launched: on a CPU there is but one worker."""

    def __init__(self) -> None:
        self._results: deque[StepResult] = deque()

    @abstractmethod
    def execute(self, plan: StepPlan) -> StepResult:
        """Carry out a whole step."""

    def launch(self, plan: StepPlan) -> None:
        self._results.append(self.execute(plan))

    def collect(self) -> StepResult:
        return self._results.popleft()
