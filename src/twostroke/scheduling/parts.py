"""What a scheduler is given; ``plain_parts.py`` has the plainest way to fill each part.

All are pure, like the scheduler. Those that do more are features, which ``assemble.py`` puts in.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from twostroke.core.request import Request
from twostroke.core.speculation_config import DepthChange
from twostroke.core.step import StepPlan, StepResult
from twostroke.kv_cache.block_table import Prefix
from twostroke.kv_cache.manager import KVCacheManager
from twostroke.observability.events import TierStats


class Preemption(Protocol):
    """Takes the blocks of a running request, which then waits to be admitted again.

    After ``preempt`` the request holds no block of the pool and has computed no token. What can be
    found of it, in the prefix cache or in a tier, is found when it is admitted again. A way that
    saves blocks puts the saves into ``plan``.
    """

    def preempt(self, request: Request, kv: KVCacheManager, plan: StepPlan) -> None: ...


class Tiers(Protocol):
    """Plans what moves between the KV cache and slower memory; puts the transfers into plans."""

    def has_work(self) -> bool:
        """Whether a plan is needed although no request may be left: blocks are on their way."""
        ...

    def begin_load(self, request: Request, prefix: Prefix, plan: StepPlan) -> bool:
        """Whether a load begins of what a waiting request lacks beyond ``prefix``.

        There is room for all its known tokens. If so, it waits, without blocks of its own, until
        ``update`` names it.
        """
        ...

    def complete(self, plan: StepPlan, requests: Mapping[str, Request]) -> None:
        """Put saves and drops into the plan, at the end of ``schedule``.

        Args:
            requests: All that have not ended, by id.
        """
        ...

    def update(
        self, plan: StepPlan, result: StepResult, requests: Mapping[str, Request]
    ) -> Sequence[str]:
        """Take in what became of transfers. Returns the requests that wait for none any more."""
        ...

    def stats(self) -> TierStats | None:
        """What is where, and what has been moved; ``None`` where there are no tiers."""
        ...


class DraftDepth(Protocol):
    """Says how many drafts a request may get.

    Attributes:
        needs_slots: Whether drafting writes keys and values: then the block table needs room for
            the drafts already while they are made.
        guesses: Whether any are made at all; what makes them reads the tokens of every step.
    """

    needs_slots: bool
    guesses: bool

    def choose(self, request: Request, changes: list[DepthChange] | None = None) -> int:
        """Most drafts for a request that draws in the step that is being planned; 0 is none.

        Args:
            changes: Gets the choice and its reason, where it is not what it was in the step before.
        """
        ...

    def observe(self, plan: StepPlan, result: StepResult) -> None:
        """Learn from a step: what was accepted, and how long it took. Keeps neither."""
        ...


class StepBudget(Protocol):
    """Chooses each step's budget. ``observe`` is called once after each step.

    Attributes:
        tokens: Most tokens of the next step, from 1 to ``max_num_batched_tokens``.
    """

    @property
    def tokens(self) -> int: ...

    def observe(
        self, plan: StepPlan, result: StepResult, running: Collection[Request], now: float
    ) -> None:
        """Take in a step that ended at ``now``; ``running`` are those that run after it."""
        ...
