"""How far a search is: told by the planner, shown by a command."""

from __future__ import annotations


class PlanProgress:
    """Told what has been done. This one shows nothing."""

    def begin(self, what: str, total: int) -> None:
        """``total`` things of this kind follow."""

    def advance(self) -> None:
        """One of them is done."""
