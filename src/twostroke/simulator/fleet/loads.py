"""How busy replicas are, as a router sees it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

from twostroke.core.request import Request
from twostroke.routing.loads import RankedLoads, ReplicaLoad
from twostroke.routing.slow_start import SlowStart
from twostroke.simulator.fleet.counts import RequestCounts
from twostroke.simulator.fleet.replica import Replica


class ReplicaLoads(RankedLoads[int]):
    """Each replica's load at ``now`` by its index; counted when a router looks.

    Args:
        replicas: All of a fleet.
        indices: Those that take requests, in order.
        slow_start: Knows which of them have just come, if any have.
        counts: What all of ``replicas`` have at ``now``, if all take requests, and the same share.

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
        counts: RequestCounts | None = None,
    ) -> None:
        self._replicas, self._now = replicas, now
        self._indices: Collection[int] = (
            indices if isinstance(indices, range) else dict.fromkeys(indices)
        )
        self._slow_start, self._counts = slow_start, counts
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
        counts = self._counts
        number = replica.num_unfinished(self._now) if counts is None else counts[index]
        return ReplicaLoad(number, share, fullness)

    def least(self) -> int:
        return super().least() if self._counts is None else self._counts.least()

    def num_cached(self, request: Request, index: int) -> int:
        """Tokens of a prompt that a replica's cache holds."""
        self.catch_up(index)
        return self._replicas[index].kv.find_prefix(request).num_tokens

    def __iter__(self) -> Iterator[int]:
        return iter(self._indices)

    def __len__(self) -> int:
        return len(self._indices)
