"""Where the time of a step goes, by component.

A profile is taken from outside: while one is, timed versions stand in the places of the functions
that the components consist of. Without one there is nothing: no flag is looked at, no clock is
read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

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


class Profiler:
    """Adds up seconds by component. What runs inside another timed function counts for its own
    component only.

    One thread at a time: the one that steps.

    Attributes:
        clock: Seconds; on a device that computes while Python goes on, one that waits for it first.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self._seconds = dict.fromkeys(COMPONENTS, 0.0)
        self._inside: list[
            float
        ] = []  # of each open call: the seconds that went to others inside it

    def replace(self, owner: object, name: str, component: str) -> None:
        """Put a timed version in the place of the callable ``owner.name``, for good."""
        setattr(owner, name, Timed(getattr(owner, name), component, self))

    def replace_all(self, owners: Iterable[object], names: Iterable[str], component: str) -> None:
        for owner in owners:
            for name in names:
                self.replace(owner, name, component)

    def credit(self, component: str, seconds: float) -> None:
        """Seconds of the open call that are known to have gone to ``component``."""
        self._seconds[component] += seconds
        if self._inside:
            self._inside[-1] += seconds

    def call(self, component: str, function: Callable[..., Any], *args: Any, **named: Any) -> Any:
        """Call and time."""
        self._inside.append(0.0)
        began = self.clock()
        try:
            return function(*args, **named)
        finally:
            took = self.clock() - began
            self._seconds[component] += took - self._inside.pop()
            if self._inside:
                self._inside[-1] += took

    def take(self) -> dict[str, float]:
        """Seconds by component since the last time."""
        taken, self._seconds = self._seconds, dict.fromkeys(COMPONENTS, 0.0)
        return taken


class Timed:
    """A callable whose calls are timed; everything else of it is as before."""

    def __init__(self, function: Any, component: str, profiler: Profiler) -> None:
        self._function = function
        self._component = component
        self._profiler = profiler

    def __call__(self, *args: Any, **named: Any) -> Any:
        return self._profiler.call(self._component, self._function, *args, **named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._function, name)
