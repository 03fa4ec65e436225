"""Whether an engine has been ended for want of requests, and when it is to be."""

from __future__ import annotations

import threading
from collections.abc import Callable

TROUBLE_SECONDS = 30.0


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
        self._trouble, self._trouble_since = "", 0.0
        self._wake = threading.Event()

    @property
    def is_due(self) -> bool:
        """Whether it has been without a request for long enough."""
        return self.limit is not None and self._clock() - self._since > self.limit

    @property
    def trouble(self) -> str | None:
        """Why no engine could be started a short while ago.

        Later it is not told any more: who asks whether all is well then sends requests again, of
        which the next tries.
        """
        is_new = self._clock() - self._trouble_since < TROUBLE_SECONDS
        return self._trouble if self._trouble and is_new else None

    def note_trouble(self, why: str) -> None:
        """No engine could be started."""
        self._trouble, self._trouble_since = why, self._clock()

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
        self.asleep, self._trouble = False, ""
        self.begin_anew()
        self._wake.clear()

    def wait(self, closing: threading.Event) -> None:
        """Wait until it is woken, or ``end``, which follows once ``closing`` is set."""
        if not closing.is_set():
            self._wake.wait()

    def end(self) -> None:
        """No thread waits any more."""
        self._wake.set()
