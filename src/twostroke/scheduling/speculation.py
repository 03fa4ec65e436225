"""A depth of speculation that never changes, and which choices were told already."""

from __future__ import annotations

from collections.abc import Collection

from twostroke.core.request import Request
from twostroke.core.speculation_config import DepthChange, DepthReason
from twostroke.core.step import StepPlan, StepResult


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
        self.needs_slots, self.guesses = needs_slots, depth > 0
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
