"""How full an engine was over time: a few numbers for each step, averaged over any part of it."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from twostroke.observability.events import StepEvent

Floats = NDArray[np.float64]


class Levels(NamedTuple):
    """Averages over time, of each column of a strip.

    Attributes:
        running: Requests that hold blocks.
        waiting: Requests that hold none.
        kv: Share of the blocks that requests hold.
        row: The row of the step under way in the middle of the column.
    """

    running: Floats
    waiting: Floats
    kv: Floats
    row: NDArray[np.int64]


def imbalance_of(levels: Sequence[Levels]) -> Floats:
    """For each column, requests of the busiest as a multiple of the mean of all; 0 where idle."""
    load = np.array([level.running + level.waiting for level in levels])
    mean = load.mean(axis=0)
    ratio: Floats = np.where(mean > 0, load.max(axis=0) / np.maximum(mean, 1e-12), 0.0)
    return ratio


class Occupancy:
    """Filled step by step by one thread, read by any. The steps follow each other in time."""

    def __init__(self) -> None:
        self._begin, self._end = array("d"), array("d")
        self._running, self._waiting, self._held = array("i"), array("i"), array("i")
        self._total_blocks = 1

    def __len__(self) -> int:
        """How many steps it has."""
        return len(self._end)

    def add(self, event: StepEvent) -> None:
        """Take in the next step."""
        self._running.append(event.num_running)
        self._waiting.append(event.num_waiting)
        self._held.append(event.total_blocks - event.free_blocks)
        self._total_blocks = max(self._total_blocks, event.total_blocks)
        self._begin.append(event.time)
        self._end.append(event.time + event.duration)  # last: a row counts once it has this

    def levels(self, begin: float, end: float, columns: int) -> Levels:
        """Averages between two times, in this many columns of equal width.

        What a step leaves holds from its beginning to the beginning of the next one.
        """
        count = len(self._end)
        edges = np.linspace(begin, end, columns + 1)
        if not count:
            zeros = np.zeros(columns)
            return Levels(zeros, zeros, zeros, np.zeros(columns, np.int64))
        # Copies: an array whose memory is lent cannot grow.
        starts = np.array(self._begin[:count])
        times = np.append(starts, max(self._end[count - 1], starts[-1]))
        lengths = np.diff(times)

        def mean(values: array[int]) -> Floats:
            sums = np.append(0.0, np.cumsum(np.array(values[:count]) * lengths))
            whole: Floats = np.diff(np.interp(edges, times, sums))
            return whole / max(1e-12, (end - begin) / columns)

        middles = (edges[:-1] + edges[1:]) / 2
        row = np.clip(np.searchsorted(starts, middles, side="right") - 1, 0, count - 1)
        return Levels(
            mean(self._running),
            mean(self._waiting),
            mean(self._held) / self._total_blocks,
            row.astype(np.int64),
        )
