"""Memory of the host that this process may still take, within the limits set for it."""

from __future__ import annotations

import math
from pathlib import Path

import psutil

# Where Linux shows control groups (version 2), and which one this process is in.
GROUPS_ROOT = Path("/sys/fs/cgroup")
OWN_GROUP_FILE = Path("/proc/self/cgroup")


def free_host_memory() -> int:
    """Bytes that can still be allocated: of the machine's, and of each control group's limit."""
    # A container's or a service's limit: psutil only sees the machine.
    return int(min([int(psutil.virtual_memory().available), *map(_free_in, _control_groups())]))


def _control_groups() -> list[Path]:
    """This process's control group (version 2) and those around it: the limit of each holds."""
    try:
        lines = OWN_GROUP_FILE.read_text().splitlines()
    except OSError:
        lines = []
    path = next((line[3:].lstrip("/") for line in lines if line.startswith("0::")), "")
    group = GROUPS_ROOT / path
    return [group, *(folder for folder in group.parents if folder.is_relative_to(GROUPS_ROOT))]


def _free_in(group: Path) -> float:
    """Bytes that a control group still may have; infinite without a limit."""
    try:
        limit = int((group / "memory.max").read_text())  # "max" is none
        used = int((group / "memory.current").read_text())
        cache = _inactive_file_bytes((group / "memory.stat").read_text())
    except (OSError, ValueError):
        return math.inf
    return max(limit - used + cache, 0)


def _inactive_file_bytes(stat: str) -> int:
    """Page cache that the kernel gives back when asked, by a control group's ``memory.stat``."""
    return next(
        (int(line.split()[1]) for line in stat.splitlines() if line.startswith("inactive_file ")), 0
    )
