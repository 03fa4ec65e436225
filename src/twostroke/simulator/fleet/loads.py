"""How busy replicas are, as a router sees it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from twostroke.simulator.fleet.replica import Replica


class ReplicaLoads(Mapping[int, int]):
    """Unfinished requests at ``now`` by index of a replica; counted when a router looks.

    Args:
        replicas: All of a fleet.
        indices: Those that take requests, in order.
    """

    def __init__(self, replicas: Sequence[Replica], indices: Sequence[int], now: float) -> None:
        self._replicas, self._indices, self._now = replicas, dict.fromkeys(indices), now

    def __getitem__(self, index: int) -> int:
        if index not in self._indices:
            raise KeyError(index)
        return self._replicas[index].num_unfinished(self._now)

    def __iter__(self) -> Iterator[int]:
        return iter(self._indices)

    def __len__(self) -> int:
        return len(self._indices)
