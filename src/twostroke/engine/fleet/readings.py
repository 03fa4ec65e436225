"""What a live engine says of itself, as the autoscaler takes it."""

from __future__ import annotations

import time

from twostroke.engine.process.engine_process import EngineProcess
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
        engine, stats, info = self._engine, self._engine.status.stats, self._engine.info
        seconds, self._read_at = now - self._read_at, now
        num_samples = sum(each.num_unfinished for each in engine.unfinished())
        waiting = self._waiting_prompts(num_samples - stats.num_running)
        blocks = stats.total_blocks - stats.free_blocks
        blocks += sum(info.kv_groups.most_blocks(size, info.block_size) for size in waiting)
        places = num_samples / engine.scheduler_config.max_num_seqs
        # Of the facts: an engine that has just started has not told of its blocks yet.
        kv = max(blocks / max(1, info.num_blocks), places)
        busy = self._num_busy / max(1, self._num_looks)
        self._num_looks = self._num_busy = 0
        return ReplicaReading(kv, busy, engine.num_unfinished, self._ttft(sum(waiting), seconds))

    def _waiting_prompts(self, num_waiting: int) -> list[int]:
        """The lengths of prompts that hold no blocks yet.

        The engine tells how many wait, not which: they are taken for those that came last.
        """
        sizes: list[int] = []
        for stream in reversed(self._engine.unfinished()):
            if num_waiting <= 0:
                break
            if not stream.usage.output_tokens:
                sizes.append(stream.num_prompt_tokens)
                num_waiting -= stream.num_unfinished
        return sizes

    def _ttft(self, waiting: int, seconds: float) -> float | None:
        """How long prompts that wait will take, as fast as others went through meanwhile."""
        events = self._engine.events(self._last_step)
        if events:
            self._last_step = events[-1].step
        if not waiting:
            return 0.0
        computed = sum(event.num_prompt_tokens for event in events)
        return waiting * seconds / computed if computed else None
