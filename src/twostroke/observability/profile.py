"""Where the time of a step goes, by component.

Each part that a profile names is given a profiler when it is made, and measures itself with it.
Without one it is given ``NO_PROFILE``, which reads no clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Protocol

# What the time of a step is divided into, in the order of a table; ``REST`` is what no other one
# claims.
SCHEDULING, INPUT, ATTENTION, GEMM = "scheduling", "input building", "attention", "GEMM"
LAYERS, SAMPLING, DETOKENISE, SERIALISE, REST = (
    "norms, activations",
    "sampling",
    "detokenise",
    "serialise",
    "rest",
)
COMPONENTS = (SCHEDULING, INPUT, ATTENTION, GEMM, LAYERS, SAMPLING, DETOKENISE, SERIALISE, REST)

Clock = Callable[[], float]


class Profiler(Protocol):
    """The seam between what runs a step and what adds up its time.

    Attributes:
        enabled: Whether anything is measured; kernels then read the clock themselves.
    """

    enabled: bool

    def measure(self, component: str) -> AbstractContextManager[object]:
        """Count what runs inside for ``component``, but for what is measured inside that."""
        ...

    def credit(self, component: str, seconds: float) -> None:
        """Move seconds of the open measurement to ``component``."""
        ...

    def use_clock(self, clock: Clock) -> None:
        """Measure with ``clock`` from now on: on a GPU, one that waits for the device first."""
        ...


class NullProfiler:
    """Measures nothing, in 0.1 microseconds a measurement."""

    enabled = False

    def measure(self, component: str) -> NullProfiler:
        return self

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass

    def credit(self, component: str, seconds: float) -> None:
        pass

    def use_clock(self, clock: Clock) -> None:
        pass


NO_PROFILE = NullProfiler()


class StepProfiler:
    """Adds up seconds by component. One thread at a time: the one that steps.

    Args:
        clock: Seconds.
    """

    enabled = True

    def __init__(self, clock: Clock = time.perf_counter) -> None:
        self._clock = clock
        self._seconds = dict.fromkeys(COMPONENTS, 0.0)
        # Of each open measurement: the seconds that went to others inside it.
        self._inside: list[float] = []

    def measure(self, component: str) -> AbstractContextManager[object]:
        return _Measurement(self, component)

    def credit(self, component: str, seconds: float) -> None:
        self._seconds[component] += seconds
        if self._inside:
            self._inside[-1] += seconds

    def use_clock(self, clock: Clock) -> None:
        self._clock = clock

    def begin(self) -> float:
        """Open a measurement; returns the time at which it begins."""
        self._inside.append(0.0)
        return self._clock()

    def end(self, component: str, began: float) -> None:
        """Close the latest measurement, which began at ``began``."""
        seconds = self._clock() - began
        self._seconds[component] += seconds - self._inside.pop()
        if self._inside:
            self._inside[-1] += seconds

    def take(self) -> dict[str, float]:
        """Seconds by component since the last time."""
        seconds, self._seconds = self._seconds, dict.fromkeys(COMPONENTS, 0.0)
        return seconds


class _Measurement:
    __slots__ = ("_began", "_component", "_profiler")

    def __init__(self, profiler: StepProfiler, component: str) -> None:
        self._profiler = profiler
        self._component = component

    def __enter__(self) -> None:
        self._began = self._profiler.begin()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._profiler.end(self._component, self._began)
