"""How a running request is made to wait: swap space, and the choice of ``--preemption``."""

from __future__ import annotations

from twostroke.core.kv_tier_config import PreemptionName
from twostroke.core.request import Request
from twostroke.core.step import StepPlan
from twostroke.kv_cache.manager import KVCacheManager
from twostroke.scheduling.parts import Preemption, Recompute
from twostroke.scheduling.tiered_blocks import TieredBlocks


class Swap:
    """Save the blocks in the swap space before they are dropped; without room there, only drop.

    Args:
        only_if_faster: Save them only if saving and loading them is faster than computing them
            again, as far as that has been measured.
    """

    def __init__(self, tiers: TieredBlocks, *, only_if_faster: bool = False) -> None:
        self._tiers = tiers
        self._only_if_faster = only_if_faster

    def preempt(self, request: Request, kv: KVCacheManager, plan: StepPlan) -> None:
        if not self._only_if_faster or self._is_faster(request, kv):
            self._tiers.swap_out(request, plan)
        kv.free(request)
        request.num_computed_tokens = 0

    def _is_faster(self, request: Request, kv: KVCacheManager) -> bool:
        """Whether this victim's blocks come back sooner than its tokens are computed."""
        missing, swap_tier = self._tiers.missing_blocks(request), self._tiers.swap_tier
        if missing is None or swap_tier is None:
            return False
        num_blocks, speeds = len(kv.full_blocks(request)[0]), self._tiers.speeds
        num_tokens = request.num_computed_tokens // kv.block_size * kv.block_size
        if not speeds.load_pays({swap_tier.name: num_blocks}, num_tokens):
            return False
        computing = speeds.computing(num_tokens)
        moving = speeds.saving(len(missing)) + speeds.loading({swap_tier.name: num_blocks})
        return computing is None or moving < computing


def choose_preemption(name: PreemptionName, tiers: TieredBlocks) -> Preemption:
    """The way that ``--preemption`` names."""
    if name == "recompute":
        return Recompute()
    return Swap(tiers, only_if_faster=name == "auto")
