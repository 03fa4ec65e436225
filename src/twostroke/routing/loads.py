"""What routers see of a replica."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import TypeVar

# How a caller names its replicas: an index, a URL.
ReplicaId = TypeVar("ReplicaId", bound=Hashable)


def no_memory(num_tokens: int) -> float:
    """How full a replica is of which nothing is told."""
    return 0.0


@dataclass(slots=True)
class ReplicaLoad:
    """How busy a replica is; valid until the next request is routed.

    Attributes:
        requests: Unfinished ones.
        share: How much of what others get it is to get, from above 0 to 1: less where it has just
            come (``SlowStart``).
        fullness: How full it would be with a prompt of so many tokens more: KV blocks that its
            requests hold and that its waiting ones will need, as a share of all its blocks; where
            ``--max-num-seqs`` is reached before, the share of that. Above 1 some have to wait.
            Asked only by routers that go by it, since it takes longer.
    """

    requests: int
    share: float = 1.0
    fullness: Callable[[int], float] = no_memory

    @property
    def weight(self) -> float:
        """Its requests with one more, as if it were to get a full share."""
        return (self.requests + 1) / self.share


class RankedLoads(Mapping[ReplicaId, ReplicaLoad]):
    """Loads of a fleet so large that it keeps count of them: see ``least_loaded``."""

    def least(self) -> ReplicaId:
        """The replica with the least ``weight``, the first of several."""
        return min(self, key=lambda replica: self[replica].weight)
