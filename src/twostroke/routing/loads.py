"""What routers see of a replica."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


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
