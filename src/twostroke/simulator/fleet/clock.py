"""Time that only steps move."""

from __future__ import annotations


class VirtualClock:
    """Seconds since the simulation began.

    It can stand in for the engine's ``clock``: calling it reads ``now``.
    """

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        assert seconds >= 0
        self.now += seconds

    def advance_to(self, time: float) -> None:
        """Go to a later time; an earlier one is ignored, since nothing can be undone."""
        if time > self.now:
            self.now = time
