"""Which engines may get a request, and how busy a router is to take each for."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial

from twostroke.engine.process.engine_process import EngineProcess
from twostroke.engine.process.occupancy import fullness
from twostroke.routing.circuit_breaker import CircuitBreaker
from twostroke.routing.loads import ReplicaLoad
from twostroke.routing.slow_start import SlowStart

logger = logging.getLogger(__name__)


class Candidates:
    """Has engines that have just come start slowly, and leaves out those that fail again and again.

    Engines go by their index. All methods run on the event loop's thread.

    Args:
        slow_start: Seconds after which an engine that has come gets as much as the others.

    Attributes:
        num_failures: How often each engine has ended by itself.
    """

    def __init__(self, slow_start: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._slow_start: SlowStart[int] = SlowStart(slow_start)
        self._breaker: CircuitBreaker[int] = CircuitBreaker()
        self.num_failures: Counter[int] = Counter()

    def note_start(self, index: int) -> None:
        """An engine runs from now on."""
        self._slow_start.note_start(index, self._clock())

    def note_failure(self, index: int, name: str) -> None:
        """An engine has ended, and had not said that it would.

        Args:
            name: What people know it by.
        """
        now = self._clock()
        self.num_failures[index] += 1
        before = self._breaker.state(index, now)
        self._breaker.note_failure(index, now)
        if before != "open" and self.is_left_out(index):
            logger.error("%s fails again and again: it gets no requests for a while", name)

    def forget(self, index: int) -> None:
        """An engine is gone for good."""
        self._slow_start.forget(index)
        self._breaker.forget(index)
        del self.num_failures[index]

    def is_left_out(self, index: int) -> bool:
        """Whether an engine gets nothing at the moment since it has failed too often."""
        return self._breaker.state(index, self._clock()) == "open"

    def loads(self, running: Mapping[int, EngineProcess]) -> dict[int, ReplicaLoad]:
        """How busy those are that may get a request.

        Where all of ``running`` have failed again and again, all of them may: a try is better than
        a refusal.
        """
        now, loads, admitted = self._clock(), {}, {}
        for index, engine in running.items():
            if engine.answered:
                self._breaker.note_answer(index, now)
            number, share = engine.num_unfinished, self._slow_start.share(index, now)
            loads[index] = ReplicaLoad(number, share, partial(fullness, engine))
            if self._breaker.admits(index, now, number):
                admitted[index] = loads[index]
        return admitted or loads
