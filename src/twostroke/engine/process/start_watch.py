"""Whether a process that starts still does something."""

from __future__ import annotations

import time
from contextlib import suppress

import psutil

PATIENCE = 20.0  # seconds without work until a start counts as hanging
_WORK = 0.02  # seconds of processor time: what waits takes less, what loads takes more


class StartWatch:
    """Sees when a process and those that it has started have stopped to work.

    Something has stopped them, or they wait for what does not come: loading a model takes processor
    time, and what waits for a disk, however slow that is, says so.

    Args:
        patience: Seconds without work that are allowed.
    """

    def __init__(self, pid: int, patience: float) -> None:
        self._pid, self._patience = pid, patience
        self._worked, self._work = time.monotonic(), 0.0

    def hangs(self) -> bool:
        """Look again; call it every second or so."""
        now, (work, waits_for_disk) = time.monotonic(), _look_at(self._pid)
        # Less than before: one of them has ended, which is an event as well.
        if waits_for_disk or not self._work <= work < self._work + _WORK:
            self._worked, self._work = now, work
        return now - self._worked > self._patience


def _look_at(pid: int) -> tuple[float, bool]:
    """The processor time of a process and of those that come from it; whether a disk is awaited."""
    total, waits_for_disk = 0.0, False
    with suppress(psutil.Error):  # it has just ended, which its socket tells
        process = psutil.Process(pid)
        for each in (process, *process.children(recursive=True)):
            times = each.cpu_times()
            total += times.user + times.system
            waits_for_disk |= each.status() == psutil.STATUS_DISK_SLEEP
    return total, waits_for_disk
