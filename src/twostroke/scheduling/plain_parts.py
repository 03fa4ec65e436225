"""The plainest of each part that a scheduler is given."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from twostroke.core.request import Request
from twostroke.core.speculation_config import DepthChange
from twostroke.core.step import StepPlan, StepResult
from twostroke.kv_cache.block_table import Prefix
from twostroke.kv_cache.manager import KVCacheManager
from twostroke.observability.events import TierStats


class Recompute:
    """Drop the blocks. What the prefix cache has lost by the next admission is computed again."""

    def preempt(self, request: Request, kv: KVCacheManager, plan: StepPlan) -> None:
        kv.free(request)
        request.num_computed_tokens = 0


class WithoutTiers:
    """Blocks that the KV cache has no room for are lost."""

    def has_work(self) -> bool:
        return False

    def begin_load(self, request: Request, prefix: Prefix, plan: StepPlan) -> bool:
        return False

    def complete(self, plan: StepPlan, requests: Mapping[str, Request]) -> None:
        """Nothing moves."""

    def update(
        self, plan: StepPlan, result: StepResult, requests: Mapping[str, Request]
    ) -> Sequence[str]:
        return ()

    def stats(self) -> TierStats | None:
        return None


class NoDrafts:
    """Nothing is guessed."""

    needs_slots = guesses = False

    def choose(self, request: Request, changes: list[DepthChange] | None = None) -> int:
        return 0

    def observe(self, plan: StepPlan, result: StepResult) -> None:
        """There is nothing to learn."""


class FixedBudget:
    """A ``StepBudget`` that never changes."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens

    def observe(
        self, plan: StepPlan, result: StepResult, running: Collection[Request], now: float
    ) -> None:
        """Nothing changes it."""
