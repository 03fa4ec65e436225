"""How many tokens are guessed ahead for each request: the depth of speculation."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from twostroke.core.request import Request
from twostroke.core.step import DepthChange, DepthReason, StepPlan, StepResult


class DraftDepth(Protocol):
    """Says after each step how many drafts a request may get. Pure, like the scheduler.

    Attributes:
        needs_slots: Whether drafting writes keys and values: then the block table needs room for
            the drafts already while they are made.
    """

    needs_slots: bool

    def choose(self, request: Request, changes: list[DepthChange] | None = None) -> int:
        """Most drafts for a request that draws in the step that is being planned; 0 is none.

        Args:
            changes: Gets the choice and its reason, where it is not what it was in the step before.
        """
        ...

    def observe(self, plan: StepPlan, result: StepResult) -> None:
        """Learn from a step: what was accepted, and how long it took. Nothing is kept of both."""
        ...


class ToldDepths:
    """The latest choice that was told of each request, so that only changes are recorded."""

    def __init__(self) -> None:
        self._told: dict[str, tuple[int, DepthReason]] = {}

    def is_new(self, request_id: str, depth: int, reason: DepthReason) -> bool:
        """Whether the choice is another one than before; it is then taken for told."""
        if self._told.get(request_id) == (depth, reason):
            return False
        self._told[request_id] = depth, reason
        return True

    def forget(self, request_ids: Collection[str]) -> None:
        """The requests run no more."""
        for request_id in request_ids:
            self._told.pop(request_id, None)


class FixedDepth:
    """Always the same depth, or what the request asks for if that is less."""

    def __init__(self, depth: int = 0, *, needs_slots: bool = False) -> None:
        self.needs_slots = needs_slots
        self._depth = depth
        self._told = ToldDepths()

    def choose(self, request: Request, changes: list[DepthChange] | None = None) -> int:
        if not self._depth:
            return 0
        asked = request.params.speculation
        is_less = asked is not None and asked < self._depth
        depth = asked if asked is not None and is_less else self._depth
        reason = DepthReason.ASKED if is_less else DepthReason.FIXED
        if changes is not None and self._told.is_new(request.request_id, depth, reason):
            changes.append(DepthChange(request.request_id, depth, reason))
        return depth

    def observe(self, plan: StepPlan, result: StepResult) -> None:
        """Nothing changes it."""
        self._told.forget(plan.released)


def room_for_drafts(request: Request, num_tokens: int) -> int:
    """How many drafts of an answer of limited length can be of use after ``num_tokens`` more.

    The step may draw one more token than it computes, and the last token is never a draft: a pass
    that verifies drafts gives one token more than it accepts.
    """
    known = request.num_computed_tokens + num_tokens + 1
    return max(0, request.max_total_tokens - known - 1)
