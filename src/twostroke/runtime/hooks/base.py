"""The seam of what joins a step: constraints, drafts, tiers, vectors, scores of prompts."""

from __future__ import annotations

from typing import Protocol

from twostroke.runtime.step_run import StepRun


class PassHook(Protocol):
    """Joins each step of an executor. What a hook leaves out does nothing.

    The executor owns its hooks and calls them from one thread. ``update`` and ``before`` go from
    the first hook to the last, ``after`` from the last to the first. ``update`` sees every plan, in
    order; where one ``is_ahead``, before ``after`` of the step before it. A hook keeps its own copy
    of what it needs of plan and batch, and drops it when a plan releases the request. An exception
    fails the whole step; one request fails by ``StepRun.fail`` or ``end``.
    """

    def update(self, step: StepRun) -> None:
        """Take in ``step.plan``, before anything of the step is written."""
        return

    def before(self, step: StepRun) -> None:
        """The batch is built: say what the pass is to compute, begin what may run beside it."""
        return

    def after(self, step: StepRun) -> None:
        """Tokens are drawn, or nothing was scheduled and the batch is empty: add to the result."""
        return

    def close(self) -> None:
        """Let go of memory, threads and files."""
        return
