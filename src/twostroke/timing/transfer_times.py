"""How long it takes to compute tokens, and to move their blocks instead, learned from steps."""

from __future__ import annotations

from collections.abc import Mapping

from twostroke.core.step import StepPlan, StepResult
from twostroke.timing.mean_times import follow, weight_of

# What is not chosen is not measured either. So an estimate that keeps a load away shrinks with each
# time that it does, until one is tried again.
FORGETTING = 0.9
# Smaller passes say more about their fixed costs than about the time of a token.
LEAST_PREFILL = 32


class TransferTimes:
    """Means that follow changes. What was never measured costs nothing, so that it is tried."""

    def __init__(self) -> None:
        self._token_seconds = 0.0
        self._load_seconds: dict[str, float] = {}  # of a block, by tier
        self._save_seconds = 0.0  # of a block

    def observe_pass(self, plan: StepPlan, result: StepResult) -> None:
        """Learn from a step what tokens, saves and loads cost."""
        num_saved = sum(len(save.block_ids) for save in plan.block_saves)
        if num_saved and "save" in result.timings:
            self._save_seconds = _mean(self._save_seconds, result.timings["save"] / num_saved)
        for change in result.tier_changes:
            if change.num_loaded:
                former = self._load_seconds.get(change.tier, 0.0)
                new = change.load_seconds / change.num_loaded
                self._load_seconds[change.tier] = _mean(former, new)
        num_prefill = sum(s.num_tokens for s in plan.scheduled.values() if s.num_tokens > 1)
        if num_prefill < LEAST_PREFILL or 2 * num_prefill < plan.num_tokens or result.failure:
            return
        seconds = result.timings.get("forward", result.duration)
        self._token_seconds = _mean(self._token_seconds, seconds / plan.num_tokens)

    def computing(self, num_tokens: int) -> float | None:
        """Seconds of computing ``num_tokens``; ``None`` before the first measurement."""
        return self._token_seconds * num_tokens or None

    def loading(self, num_blocks: Mapping[str, int]) -> float:
        """Seconds of loading the blocks of each tier."""
        return sum(self._load_seconds.get(tier, 0.0) * n for tier, n in num_blocks.items())

    def saving(self, num_blocks: int) -> float:
        """Seconds by which a step is longer that saves ``num_blocks``."""
        return self._save_seconds * num_blocks

    def load_pays(self, num_blocks: Mapping[str, int], num_tokens: int) -> bool:
        """Whether loading the blocks is faster than computing the tokens that they spare."""
        computing = self.computing(num_tokens)
        if computing is None or self.loading(num_blocks) < computing:
            return True
        for tier in num_blocks:
            self._load_seconds[tier] = self._load_seconds.get(tier, 0.0) * FORGETTING
        return False


def _mean(former: float, new: float) -> float:
    return follow(former, new, weight_of(new, former)) if former else new
