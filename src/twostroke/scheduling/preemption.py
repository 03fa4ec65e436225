"""How a running request is made to wait: the ways to take its blocks away."""

from __future__ import annotations

from typing import Protocol

from twostroke.core.request import Request
from twostroke.core.step import StepPlan
from twostroke.kv_cache.manager import KVCacheManager


class Preemption(Protocol):
    """Takes the blocks of a running request, which then waits to be admitted again.

    After ``preempt`` the request holds no block of the pool and has computed no token. What can be
    found of it, in the prefix cache or in a tier, is found when it is admitted again. A way that
    saves blocks puts the saves into ``plan``.
    """

    def preempt(self, request: Request, kv: KVCacheManager, plan: StepPlan) -> None: ...


class Recompute:
    """Drop the blocks. What the prefix cache has lost by the next admission is computed again."""

    def preempt(self, request: Request, kv: KVCacheManager, plan: StepPlan) -> None:
        kv.free(request)
        request.num_computed_tokens = 0
