"""Answers that have a form: masks for their draws, and tokens that leave no choice."""

from __future__ import annotations

from twostroke.runtime.constraints.states import ConstraintStates
from twostroke.runtime.hooks.base import PassHook
from twostroke.runtime.step_run import StepRun


class Constraints(PassHook):
    """Computes masks beside the pass, and adds forced tokens to what was drawn."""

    def __init__(self, states: ConstraintStates) -> None:
        self._states = states

    def update(self, step: StepRun) -> None:
        self._states.update(step.plan)

    def before(self, step: StepRun) -> None:
        step.mask_source = self._states.begin(step.batch)

    def after(self, step: StepRun) -> None:
        step.forced = self._states.add_forced(step.batch, step.result, step.clock.total())

    def close(self) -> None:
        self._states.close()
