"""The time of one kernel and what it waits for."""

from __future__ import annotations

import msgspec


class KernelTime(msgspec.Struct, frozen=True):
    """Seconds, all of them, and how they divide: what waits for arithmetic, for memory, for the start of the kernel."""

    seconds: float
    compute: float = 0.0
    memory: float = 0.0
    launch: float = 0.0

    def times(self, count: float) -> KernelTime:
        return KernelTime(count * self.seconds, count * self.compute, count * self.memory, count * self.launch)


def combine(compute: float, memory: float, launch: float, sharpness: float) -> KernelTime:
    """Compute and memory overlap: ``(c^p + m^p)^(1/p)``, p = 1 one after the other, large p the longer of the two."""
    longer, shorter = (compute, memory) if compute >= memory else (memory, compute)
    body = longer * (1.0 + (shorter / longer) ** sharpness) ** (1.0 / sharpness) if longer else 0.0
    if compute >= memory:
        return KernelTime(body + launch, body, 0.0, launch)
    return KernelTime(body + launch, 0.0, body, launch)
