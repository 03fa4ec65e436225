"""Ranks that are threads of one process, and meet at barriers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from torch import Tensor

from twostroke.distributed.ranks import Ranks

Result = TypeVar("Result")
SECONDS = 60.0


class ThreadRanks(Ranks):
    """One of ``len(parts)`` threads.

    Args:
        parts: Where each leaves what it gives; one list for all.
    """

    def __init__(self, rank: int, parts: list[Tensor | None], barrier: threading.Barrier) -> None:
        self.rank, self.size = rank, len(parts)
        self._parts, self._barrier = parts, barrier

    def _gather(self, part: Tensor) -> list[Tensor]:
        self._parts[self.rank] = part
        self._barrier.wait(SECONDS)
        parts = [each for each in self._parts if each is not None]
        self._barrier.wait(SECONDS)
        return parts


def of_each_rank(size: int, compute: Callable[[Ranks], Result]) -> list[Result]:
    """What ``compute`` gives in each of so many threads, which exchange what they ask for."""
    parts: list[Tensor | None] = [None] * size
    barrier = threading.Barrier(size)
    with ThreadPoolExecutor(size) as pool:
        futures = [pool.submit(compute, ThreadRanks(rank, parts, barrier)) for rank in range(size)]
        return [future.result(SECONDS) for future in futures]
