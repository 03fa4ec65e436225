"""How busy replicas are, as a router sees it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from twostroke.routing.loads import ReplicaLoad
from twostroke.routing.slow_start import SlowStart
from twostroke.simulator.fleet.replica import Replica


class ReplicaLoads(Mapping[int, ReplicaLoad]):
    """Each replica's load at ``now`` by its index; counted when a router looks.

    Args:
        replicas: All of a fleet.
        indices: Those that take requests, in order.
        slow_start: Knows which of them have just come, if any have.

    Attributes:
        catch_up: Called with the index of a replica whose KV cache is to be looked at: it may have
            steps to take before ``now``.
    """

    def __init__(
        self,
        replicas: Sequence[Replica],
        indices: Sequence[int],
        now: float,
        slow_start: SlowStart[int] | None = None,
    ) -> None:
        self._replicas, self._indices, self._now = replicas, dict.fromkeys(indices), now
        self._slow_start = slow_start
        self.catch_up: Callable[[int], None] = lambda index: None

    def __getitem__(self, index: int) -> ReplicaLoad:
        if index not in self._indices:
            raise KeyError(index)
        replica = self._replicas[index]

        def fullness(prompt_tokens: int) -> float:
            self.catch_up(index)
            return replica.fullness(prompt_tokens)

        slow_start = self._slow_start
        share = 1.0 if slow_start is None else slow_start.share(index, self._now)
        return ReplicaLoad(replica.num_unfinished(self._now), share, fullness)

    def __iter__(self) -> Iterator[int]:
        return iter(self._indices)

    def __len__(self) -> int:
        return len(self._indices)
