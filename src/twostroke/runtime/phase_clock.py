"""How long the phases of a step, or of loading a model, take."""

from __future__ import annotations

import time
from dataclasses import dataclass


@dataclass(slots=True)
class PhaseClock:
    """Seconds by phase, each from the end of the one before; a phase may come several times."""

    seconds: dict[str, float]
    _start: float
    _last: float

    def __init__(self) -> None:
        self.seconds = {}
        self._start = self._last = time.perf_counter()

    def mark(self, phase: str) -> None:
        now = time.perf_counter()
        self.seconds[phase] = self.seconds.get(phase, 0.0) + now - self._last
        self._last = now

    def resume(self, begun: float) -> None:
        """Let the time since the last mark belong to no phase.

        Args:
            begun: When it all began, in seconds of ``perf_counter``, if that is after the start.
        """
        self._last, self._start = time.perf_counter(), max(self._start, begun)

    def total(self) -> float:
        return time.perf_counter() - self._start
