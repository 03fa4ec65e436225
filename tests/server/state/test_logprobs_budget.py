"""The memory of log-probabilities: bounded for the server, and never all of it one key's."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from twostroke.core.errors import InvalidRequestError, LogprobsFullError
from twostroke.server.state.logprobs_budget import HeldLogprobs, LogprobsBudget

LIMIT = 1000
TENANTS = ("alice", "bob", "carol")


def test_without_keys_calls_share_all_of_it() -> None:
    budget = LogprobsBudget(LIMIT)
    first = budget.reserve("", 600)
    with pytest.raises(LogprobsFullError, match="400 bytes free") as caught:
        budget.reserve("", 401)
    assert "--max-logprobs-memory" in str(caught.value.hint)
    budget.reserve("", 400)
    first.release()
    first.release()
    assert budget.num_held_bytes == 400


def test_a_key_leaves_as_much_to_others_as_it_holds() -> None:
    budget = LogprobsBudget(LIMIT)
    budget.reserve("alice", 500)
    with pytest.raises(LogprobsFullError):
        budget.reserve("alice", 1)
    budget.reserve("bob", 250)


def test_a_call_that_never_fits_is_told_so() -> None:
    with pytest.raises(InvalidRequestError, match="a call 1000 bytes"):
        LogprobsBudget(LIMIT).reserve("", 1001)
    with pytest.raises(InvalidRequestError, match="a call 500 bytes") as caught:
        LogprobsBudget(LIMIT).reserve("alice", 501)
    assert caught.value.param == "logprobs"


class BudgetMachine(RuleBasedStateMachine):
    """Calls of three keys come, grow and end."""

    def __init__(self) -> None:
        super().__init__()
        self.budget = LogprobsBudget(LIMIT)
        self.calls: list[tuple[str, HeldLogprobs, int]] = []

    @rule(tenant=st.sampled_from(TENANTS), num_bytes=st.integers(0, LIMIT // 2))
    def come(self, tenant: str, num_bytes: int) -> None:
        try:
            held = self.budget.reserve(tenant, num_bytes)
        except LogprobsFullError:
            return
        self.calls.append((tenant, held, num_bytes))

    @rule(index=st.integers(0, 9), num_bytes=st.integers(0, LIMIT))
    def hold(self, index: int, num_bytes: int) -> None:
        if index < len(self.calls):
            tenant, held, before = self.calls[index]
            try:
                held.hold(num_bytes)
            except LogprobsFullError:
                assert num_bytes > before
                return
            self.calls[index] = tenant, held, num_bytes

    @rule(index=st.integers(0, 9))
    def end(self, index: int) -> None:
        if index < len(self.calls):
            _, held, _ = self.calls.pop(index)
            held.release()
            held.hold_at_least(LIMIT)  # its last outputs may come after its end

    @invariant()
    def what_is_held_is_counted_and_bounded(self) -> None:
        assert self.budget.num_held_bytes == sum(num_bytes for _, _, num_bytes in self.calls)
        assert self.budget.num_held_bytes <= LIMIT

    @invariant()
    def a_key_without_calls_finds_room(self) -> None:
        idle = [tenant for tenant in TENANTS if all(tenant != call[0] for call in self.calls)]
        if idle:
            self.budget.reserve(idle[0], LIMIT // 16).release()


TestBudgetMachine = BudgetMachine.TestCase
TestBudgetMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
