"""How slow a client may be: some seconds, and one more per ``min_client_rate`` bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class ClientPace:
    """Measures how far a client lags while it is awaited, and reports one that lags too far.

    Each second in which it is awaited adds a second to the lag, each ``rate`` bytes take one off.
    Bytes are no savings: the lag never falls below zero.

    Args:
        seconds: The lag at which the client is too slow.
        rate: Bytes per second.
        num_moved: How many bytes have passed since its last call.
        on_too_slow: Called once; the clock rests then.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        seconds: float,
        rate: int,
        num_moved: Callable[[], int],
        on_too_slow: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._seconds = seconds
        self._rate = rate
        self._num_moved = num_moved
        self._on_too_slow = on_too_slow
        self._lag = 0.0
        self._since = 0.0  # up to when the time is in the lag
        self._timer: asyncio.TimerHandle | None = None

    def run(self) -> None:
        """From now on the client is awaited."""
        if self._timer is None:
            self._since = self._loop.time()
            self._num_moved()  # what passed before it was awaited does not count
            self._timer = self._loop.call_later(self._seconds - self._lag, self._look)

    def rest(self) -> None:
        """The client is not awaited: it has done its part, or this server makes it wait."""
        if self._timer is not None:
            self._settle()
            self._timer.cancel()
            self._timer = None

    def restart(self) -> None:
        """Forget the lag, and rest."""
        self.rest()
        self._lag = 0.0

    def _settle(self) -> None:
        now = self._loop.time()
        self._lag = max(0.0, self._lag + now - self._since - self._num_moved() / self._rate)
        self._since = now

    def _look(self) -> None:
        self._settle()
        if self._lag < self._seconds:
            self._timer = self._loop.call_later(self._seconds - self._lag, self._look)
        else:
            self._timer = None
            self._on_too_slow()
