"""KV blocks that are saved to tiers before a pass writes, and copied from them after it."""

from __future__ import annotations

from twostroke.core.errors import EngineError
from twostroke.kv_tiers.transfers import Transfers
from twostroke.runtime.hooks.base import PassHook
from twostroke.runtime.step_run import StepRun


class TierTransfers(PassHook):
    """Carries out what plans say of tiers.

    The first of all hooks: requests wait for its loads, so nothing may fail before they are asked
    for, and what arrives is copied when all else of the step is done.

    Args:
        transfers: Moves the blocks; owned from here on.
    """

    def __init__(self, transfers: Transfers) -> None:
        self._transfers = transfers

    def update(self, step: StepRun) -> None:
        self._transfers.begin(step.plan)
        step.clock.mark("save")

    def after(self, step: StepRun) -> None:
        self._transfers.advance(step.plan, step.result, step.clock.total())
        step.clock.mark("load")

    def close(self) -> None:
        self._transfers.close()


class NoTiers(PassHook):
    """Refuses plans that move blocks to or from tiers, where there are none."""

    def update(self, step: StepRun) -> None:
        if step.plan.block_loads or step.plan.block_saves:
            raise EngineError("this executor has no tier to load blocks from or to save them to")
