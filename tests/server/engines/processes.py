"""The processes that a server has started, whatever their number and the length of their names."""

from __future__ import annotations

import psutil


def started_by(parent: int, containing: str) -> list[int]:
    """The ids of the children of a process whose command line contains a text, in order."""
    pids: list[int] = []
    for child in psutil.Process(parent).children():
        try:
            command = " ".join(child.cmdline())
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
        if containing in command:
            pids.append(child.pid)
    return sorted(pids)
