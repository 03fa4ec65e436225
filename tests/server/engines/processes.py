"""The processes that a server has started, whatever their number and the length of their names."""

from __future__ import annotations

import psutil

_GONE = (psutil.NoSuchProcess, psutil.ZombieProcess)


def started_by(parent: int, containing: str) -> list[int]:
    """The ids of the children of a process whose command line contains a text, in order.

    None, if the process has ended.
    """
    pids: list[int] = []
    try:
        children = psutil.Process(parent).children()
    except _GONE:
        return pids
    for child in children:
        try:
            command = " ".join(child.cmdline())
        except _GONE:
            continue
        if containing in command:
            pids.append(child.pid)
    return sorted(pids)
