"""The requests that run: which get blocks, and which have to give theirs back."""

from __future__ import annotations

from typing import NamedTuple

from twostroke.core.request import Request, RequestStatus
from twostroke.core.sampling_params import HostWait
from twostroke.core.step import Decision, Reason, StepPlan
from twostroke.kv_cache.block_table import TableChange
from twostroke.kv_cache.manager import KVCacheManager
from twostroke.scheduling.parts import Preemption
from twostroke.scheduling.policies.base import SchedulingPolicy


class Slots(NamedTuple):
    """What a share got: tokens, drafts that may follow them, and what that changed of its table."""

    num_tokens: int
    depth: int
    change: TableChange


class RunningBatch:
    """Part of the scheduler, which alone changes it.

    Attributes:
        requests: By id. Read only.
        num_preemptions: Since the start.
        last_preempting: The latest step that preempted a request.
    """

    def __init__(
        self, kv: KVCacheManager, policy: SchedulingPolicy, preemption: Preemption
    ) -> None:
        self.requests: dict[str, Request] = {}
        self.num_preemptions = 0
        self.last_preempting: int | None = None
        self._kv = kv
        self._policy = policy
        self._preemption = preemption
        self._order: list[Request] | None = None  # by rank; None: sort anew

    def add(self, request: Request) -> None:
        self.requests[request.request_id] = request
        self._order = None

    def remove(self, request_id: str) -> bool:
        """Whether the request ran."""
        if self.requests.pop(request_id, None) is None:
            return False
        self._order = None
        return True

    def in_order(self) -> list[Request]:
        """The requests by the policy's rank. Read only, valid until the next step."""
        if self._order is None or self._policy.ranks_change:
            self._order = sorted(self.requests.values(), key=self._policy.rank)
        return self._order

    def num_promised(self) -> int:
        """Blocks that their known tokens still need."""
        return sum(map(self._kv.num_blocks_missing, self.requests.values()))

    def allocate(
        self, request: Request, num_tokens: int, depth: int, ahead: int, plan: StepPlan
    ) -> Slots | None:
        """Blocks for a share. Where they are short, it goes without drafts; then others yield.

        No request yields while a step runs, which may give blocks back: the next plan waits for it.

        Args:
            depth: Drafts to make after the step, which need ``ahead`` slots.

        Returns:
            ``None``: the request itself is the one that yielded, or it gets nothing in this step.
        """
        if (num_missing := request.num_missing_tokens) < num_tokens:  # the rest are drafts
            num_tokens = min(num_tokens, num_missing + self._kv.states.max_drafts(request))
        while (change := self._kv.allocate_slots(request, num_tokens + ahead)) is None:
            if ahead:  # drafts are worth no preemption, neither those to come nor these
                depth = ahead = 0
            elif num_tokens > num_missing:
                num_tokens = num_missing
            elif plan.is_ahead:
                plan.host_wait = HostWait.BLOCKS
                plan.decisions.append(Decision(request.request_id, Reason.NO_FREE_BLOCK))
                return None
            else:
                victim = max(self.requests.values(), key=self._policy.rank)
                self.preempt(victim, plan, by=request)
                if victim is request:
                    return None
        return Slots(num_tokens, depth, change)

    def preempt(self, victim: Request, plan: StepPlan, *, by: Request) -> None:
        """Make a request wait again, and take it out of the plan."""
        plan.remove(victim.request_id, self._kv.block_ids(victim))
        self._preemption.preempt(victim, self._kv, plan)
        self.remove(victim.request_id)
        victim.status = RequestStatus.WAITING
        victim.draft_token_ids = []
        victim.num_preemptions += 1
        self.num_preemptions += 1
        self.last_preempting = plan.step
        self._policy.push(victim)
        plan.released.append(victim.request_id)
        cause = None if by is victim else by.request_id  # the largest rank yields to all others
        plan.decisions.append(Decision(victim.request_id, Reason.PREEMPTED, cause))
