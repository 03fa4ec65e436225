"""The time of one kernel, and of many, by what they wait for."""

from __future__ import annotations

import msgspec

ACTIVATION_BYTES = 2.0  # of one element of what passes between kernels


class KernelTime(msgspec.Struct, frozen=True):
    """Seconds of one kernel, and the parts bound by arithmetic, by memory and by its start."""

    seconds: float
    compute: float = 0.0
    memory: float = 0.0
    launch: float = 0.0

    def times(self, count: float) -> KernelTime:
        return KernelTime(
            count * self.seconds, count * self.compute, count * self.memory, count * self.launch
        )


class Parts(msgspec.Struct):
    """Seconds of many kernels by what they wait for.

    Attributes:
        whole: Those of all that were measured as they run one after the other, gaps included.
    """

    compute: float = 0.0
    memory: float = 0.0
    launch: float = 0.0
    communication: float = 0.0
    whole: float = 0.0

    def add(self, time: KernelTime, count: float = 1.0) -> None:
        self.compute += count * time.compute
        self.memory += count * time.memory
        self.launch += count * time.launch

    def add_parts(self, other: Parts) -> None:
        self.compute += other.compute
        self.memory += other.memory
        self.launch += other.launch
        self.communication += other.communication
        self.whole += other.whole

    def copy(self) -> Parts:
        return Parts(self.compute, self.memory, self.launch, self.communication, self.whole)

    @property
    def seconds(self) -> float:
        return self.compute + self.memory + self.launch + self.communication


def combine(compute: float, memory: float, launch: float, sharpness: float) -> KernelTime:
    """Overlap compute and memory time: ``(c^p + m^p)^(1/p)`` with ``p`` the sharpness.

    p = 1 is their sum (one after the other), a large p the longer of the two.
    """
    longer, shorter = (compute, memory) if compute >= memory else (memory, compute)
    body = longer * (1.0 + (shorter / longer) ** sharpness) ** (1.0 / sharpness) if longer else 0.0
    if compute >= memory:
        return KernelTime(body + launch, body, 0.0, launch)
    return KernelTime(body + launch, 0.0, body, launch)
