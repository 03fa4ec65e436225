"""A scheduler and its parts, as configured; live and simulated engines are made of the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from twostroke.core.config import SchedulerConfig
from twostroke.core.kv_tier_config import PreemptionName
from twostroke.core.request import Request
from twostroke.core.speculation_config import Speculation
from twostroke.kv_cache.connector import TierInfo
from twostroke.kv_cache.hit_explainer import HitExplainer
from twostroke.kv_cache.manager import KVCacheManager
from twostroke.scheduling.choose_depth import choose_depth
from twostroke.scheduling.policies.choose import choose_policy
from twostroke.scheduling.preemption import choose_preemption
from twostroke.scheduling.scheduler import Scheduler
from twostroke.scheduling.step_budget import choose_budget
from twostroke.scheduling.tiered_blocks import TieredBlocks
from twostroke.timing.step_times import StepTimes


@dataclass(frozen=True, slots=True)
class MadeScheduler:
    """A scheduler and those of its parts that others read.

    Attributes:
        times: What is known of its steps' times: nothing, unless something asks.
    """

    scheduler: Scheduler
    times: StepTimes
    tiers: TieredBlocks


def assemble_scheduler(
    config: SchedulerConfig,
    kv: KVCacheManager,
    speculation: Speculation | None,
    preemption: PreemptionName = "recompute",
    tiers: Sequence[TierInfo] = (),
) -> MadeScheduler:
    """Policy, depth of speculation, budget and tiers as configured, on these block tables.

    Hits of models with recurrent layers are explained.
    """
    times = StepTimes()

    def num_cached(request: Request) -> int:
        return kv.find_prefix(request).num_tokens

    tiered = TieredBlocks(kv, tiers, always_load_swapped=preemption == "swap")
    if kv.states.exist and kv.caches_prefixes:
        HitExplainer(kv, tiered.directory)
    scheduler = Scheduler(
        config,
        kv,
        choose_policy(config, times, num_cached),
        tiers=tiered,
        preemption=choose_preemption(preemption, tiered),
        depth=choose_depth(speculation),
        budget=choose_budget(config, times),
    )
    return MadeScheduler(scheduler, times, tiered)
