"""How a running request is made to wait: swap space, and the choice of ``--preemption``."""

from __future__ import annotations

from twostroke.core.kv_groups import is_state_key
from twostroke.core.kv_tier_config import PreemptionName
from twostroke.core.request import Request
from twostroke.core.step import StepPlan
from twostroke.kv_cache.manager import KVCacheManager
from twostroke.kv_cache.tiered_prefix import find_savable
from twostroke.scheduling.parts import Preemption
from twostroke.scheduling.plain_parts import Recompute
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
        savable, swap_tier = find_savable(kv, request), self._tiers.swap_tier
        if savable is None or swap_tier is None:
            return False
        keys = [key for key, _ in savable.blocks]
        if self._tiers.directory.states_alone:
            keys = list(filter(is_state_key, keys))
        loads, speeds = {swap_tier.name: len(keys)}, self._tiers.speeds
        if not speeds.load_pays(loads, savable.num_tokens):
            return False
        computing = speeds.computing(savable.num_tokens)
        moving = speeds.saving(len(self._tiers.missing(savable))) + speeds.loading(loads)
        return computing is None or moving < computing


def choose_preemption(name: PreemptionName, tiers: TieredBlocks) -> Preemption:
    """The way that ``--preemption`` names."""
    if name == "recompute":
        return Recompute()
    return Swap(tiers, only_if_faster=name == "auto")
