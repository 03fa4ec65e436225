"""What may wait: in any order of calls and ends, no tenant's samples keep another's out."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from twostroke.core.errors import QueueFullError
from twostroke.engine.clients.queue_limit import QueueLimit
from twostroke.engine.waiting_samples import WaitingSamples

LIMIT = 8
TENANTS = ("", "alice", "bob")


def queue(**waiting: int) -> QueueLimit:
    limit = QueueLimit(LIMIT)
    for tenant, num_samples in waiting.items():
        limit.add(tenant, num_samples)
    return limit


def test_a_tenant_alone_may_fill_the_queue() -> None:
    queue(alice=7).check("alice", 1)
    with pytest.raises(QueueFullError, match=r"^8 requests wait already, and at most 8 may$"):
        queue(alice=8).check("alice", 1)
    with pytest.raises(QueueFullError, match=r"this call adds 2 \(prompts times n\)"):
        queue(alice=7).check("alice", 2)


def test_a_tenant_with_nothing_waiting_is_let_in() -> None:
    queue().check("alice", 1000)
    queue(bob=1000).check("alice", 1000)


def test_a_full_queue_has_room_for_a_share() -> None:
    crowded = queue(bob=1000, alice=1)
    crowded.check("alice", 3)
    with pytest.raises(QueueFullError, match="1 are this key's, whose share is 4"):
        crowded.check("alice", 4)
    with pytest.raises(QueueFullError):
        crowded.check("bob", 1)


def test_without_a_limit_all_wait() -> None:
    limit = QueueLimit(None)
    limit.add("alice", 10**6)
    limit.check("alice", 10**6)


class QueueMachine(RuleBasedStateMachine):
    """Calls come, and samples leave; the model counts what waits."""

    def __init__(self) -> None:
        super().__init__()
        self.samples = WaitingSamples()
        self.limit = QueueLimit(LIMIT)
        self.waiting: Counter[str] = Counter()

    @rule(tenant=st.sampled_from(TENANTS), num_samples=st.integers(1, 12))
    def call(self, tenant: str, num_samples: int) -> None:
        own, total = self.waiting[tenant], self.waiting.total()
        try:
            self.limit.check(tenant, num_samples)
        except QueueFullError:
            assert own and total + num_samples > LIMIT
            return
        assert not own or own + num_samples <= LIMIT
        self.limit.add(tenant, num_samples)
        self.waiting[tenant] += num_samples

    @rule(tenant=st.sampled_from(TENANTS), share=st.floats(0, 1))
    def leave(self, tenant: str, share: float) -> None:
        num_samples = round(self.waiting[tenant] * share)
        self.samples.leave(tenant, num_samples)
        self.limit.num_left.update(self.samples.take())
        self.waiting[tenant] -= num_samples

    @invariant()
    def a_single_sample_is_taken_within_a_share(self) -> None:
        num_waiting = sum(count > 0 for count in self.waiting.values())
        for tenant in TENANTS:
            if self.waiting[tenant] + 1 <= LIMIT // max(1, num_waiting):
                self.limit.check(tenant, 1)


TestQueueMachine = QueueMachine.TestCase
TestQueueMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
