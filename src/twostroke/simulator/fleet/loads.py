"""How busy replicas are, as a router sees it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from twostroke.simulator.fleet.replica import Replica


class ReplicaLoads(Mapping[int, int]):
    """Unfinished requests at ``now`` by index of a replica; counted when a router looks."""

    def __init__(self, replicas: Sequence[Replica], now: float) -> None:
        self._replicas, self._now = replicas, now

    def __getitem__(self, index: int) -> int:
        return self._replicas[index].num_unfinished(self._now)

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self._replicas)))

    def __len__(self) -> int:
        return len(self._replicas)
