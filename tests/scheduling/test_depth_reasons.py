"""Protects: each change of a depth is told once, with the reason that decided it."""

from __future__ import annotations

from itertools import groupby, pairwise

from tests.scheduling.harness import make_request
from tests.scheduling.test_adaptive_depth import Machine
from twostroke.core.request import Request
from twostroke.core.speculation_config import DepthChange, DepthReason
from twostroke.core.step import StepPlan, StepResult
from twostroke.scheduling.adaptive_depth import AdaptiveDepth
from twostroke.scheduling.parts import DraftDepth
from twostroke.scheduling.speculation import FixedDepth


class Noted:
    """A depth whose changes are kept."""

    def __init__(self, depth: DraftDepth) -> None:
        self.depth, self.needs_slots, self.guesses = depth, depth.needs_slots, depth.guesses
        self.changes: list[DepthChange] = []
        self.chosen: list[int] = []

    def choose(self, request: Request, changes: list[DepthChange] | None = None) -> int:
        chosen = self.depth.choose(request, self.changes)
        self.chosen.append(chosen)
        return chosen

    def observe(self, plan: StepPlan, result: StepResult) -> None:
        self.depth.observe(plan, result)


def changes_of(rate: float, pass_time: float, steps: int = 400) -> Noted:
    noted = Noted(AdaptiveDepth(4))
    Machine(noted, [rate], lambda rows: 1.0 + pass_time * rows, 0.01).run(steps)
    return noted


def test_changes_tell_the_whole_course_of_the_depth() -> None:
    noted = changes_of(0.7, 0.05)
    told = [change.depth for change in noted.changes]
    assert [depth for depth, _ in groupby(told)] == [depth for depth, _ in groupby(noted.chosen)]
    pairs = [(change.depth, change.reason) for change in noted.changes]
    assert all(one != other for one, other in pairwise(pairs))


def test_drafts_that_come_true_pay_and_the_gain_says_how_much() -> None:
    changes = changes_of(0.95, 0.01).changes
    assert changes[0].reason is DepthReason.TRIAL
    paying = [change for change in changes if change.reason is DepthReason.PAYS]
    assert paying
    assert paying[-1].depth == 4
    assert 2 < paying[-1].gain < 5


def test_drafts_that_never_come_true_do_not_pay_and_pause() -> None:
    changes = changes_of(0.0, 0.05).changes
    refused = [change for change in changes if change.reason is DepthReason.DOES_NOT_PAY]
    assert refused
    assert all(change.depth == 0 and change.pause > 0 for change in refused)
    assert refused[-1].gain < 1.03


def test_where_a_pass_costs_by_the_token_nothing_can_pay() -> None:
    noted = Noted(AdaptiveDepth(4))
    Machine(noted, [1.0], lambda rows: float(rows), 0.5).run(200)
    assert DepthReason.CANNOT_PAY in {change.reason for change in noted.changes}


def test_a_request_that_asks_for_less_is_the_reason() -> None:
    request = make_request("few", [1], 10)
    request.params = type(request.params)(speculation=0)
    for depth in (AdaptiveDepth(4), FixedDepth(4)):
        changes: list[DepthChange] = []
        assert depth.choose(request, changes) == 0
        assert depth.choose(request, changes) == 0
        assert [(one.depth, one.reason) for one in changes] == [(0, DepthReason.ASKED)]


def test_a_fixed_depth_is_told_once_until_the_request_is_released() -> None:
    depth, changes, request = FixedDepth(3), list[DepthChange](), make_request("one", [1], 10)
    for _ in range(5):
        assert depth.choose(request, changes) == 3
    assert [(one.depth, one.reason) for one in changes] == [(3, DepthReason.FIXED)]
    depth.observe(StepPlan(0, 0.0, released=["one"]), StepResult())
    depth.choose(request, changes)
    assert len(changes) == 2


def test_without_speculation_nothing_is_told() -> None:
    changes: list[DepthChange] = []
    assert FixedDepth().choose(make_request("one", [1], 10), changes) == 0
    assert changes == []
