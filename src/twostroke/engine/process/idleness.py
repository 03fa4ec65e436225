"""Whether an engine has been ended for want of requests, and when it is to be."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Idleness:
    """Kept by an engine's client; any thread may read it, and ``wake``.

    Args:
        clock: In seconds.

    Attributes:
        limit: Seconds without a request after which the engine is ended; ``None``: it is not.
        asleep: It has been, and the next request starts another.
    """

    def __init__(self, limit: float | None, clock: Callable[[], float]) -> None:
        self.limit, self._clock = limit, clock
        self._since = clock()
        self.asleep = False
        self._wake = threading.Event()

    @property
    def is_due(self) -> bool:
        """Whether it has been without a request for long enough."""
        return self.limit is not None and self._clock() - self._since > self.limit

    def begin_anew(self) -> None:
        """Something has come or gone: it is idle from now on, at the earliest."""
        self._since = self._clock()

    def wake(self) -> None:
        """Have an engine started, if it sleeps."""
        if self.asleep:
            self._wake.set()

    def sleep_on(self) -> None:
        """It could not be started; the next ``wake`` tries again."""
        self._wake.clear()

    def rise(self) -> None:
        """An engine runs again."""
        self.asleep = False
        self.begin_anew()
        self._wake.clear()

    def wait(self, closing: threading.Event) -> None:
        """Wait until it is woken, or ``end``, which follows once ``closing`` is set."""
        if not closing.is_set():
            self._wake.wait()

    def end(self) -> None:
        """No thread waits any more."""
        self._wake.set()
