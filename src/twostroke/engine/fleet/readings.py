"""What a live engine says of itself, as the autoscaler takes it."""

from __future__ import annotations

import time
from itertools import islice

from twostroke.engine.process.engine_process import EngineProcess
from twostroke.engine.process.occupancy import fullness, waiting_prompts
from twostroke.routing.autoscaler import ReplicaReading


class EngineReader:
    """Reads one engine; ``look`` is called in equal times, ``read`` where something is decided.

    All on the event loop's thread. What the engine's process tells is as old as its last report.
    """

    def __init__(self, engine: EngineProcess) -> None:
        self._engine = engine
        self._num_looks = self._num_busy = 0
        self._last_step, self._read_at = -1, time.monotonic()

    def look(self) -> None:
        """Note whether it has something to do."""
        self._num_looks += 1
        self._num_busy += self._engine.status.busy_since is not None

    def read(self, now: float) -> ReplicaReading:
        """What it has done since it was read last, and what it has to do.

        Args:
            now: On ``time.monotonic``.
        """
        engine = self._engine
        seconds, self._read_at = now - self._read_at, now
        busy = self._num_busy / max(1, self._num_looks)
        self._num_looks = self._num_busy = 0
        waiting = sum(islice(waiting_prompts(engine), engine.num_waiting))
        ttft = self._ttft(waiting, seconds)
        return ReplicaReading(fullness(engine), busy, engine.num_unfinished, ttft)

    def _ttft(self, waiting: int, seconds: float) -> float | None:
        """How long prompts that wait will take, as fast as others went through meanwhile."""
        events = self._engine.events(self._last_step)
        if events:
            self._last_step = events[-1].step
        if not waiting:
            return 0.0
        computed = sum(event.num_prompt_tokens for event in events)
        return waiting * seconds / computed if computed else None
