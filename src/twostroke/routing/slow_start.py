"""Slow start: a replica that has just come gets less than the others for a while."""

from __future__ import annotations

from typing import Generic

from twostroke.routing.loads import ReplicaId

# Less would leave it idle where there are few requests.
LEAST_SHARE = 0.1


def ramped_share(age: float, seconds: float) -> float:
    """The share of a replica that came ``age`` seconds ago, of what the others get.

    It grows in equal steps from a tenth to all, as in Envoy's slow start mode
    (envoyproxy.io, "Slow start mode").
    """
    if age >= seconds:
        return 1.0
    return LEAST_SHARE + (1 - LEAST_SHARE) * max(0.0, age) / seconds


class SlowStart(Generic[ReplicaId]):
    """Knows since when each replica takes requests.

    Args:
        seconds: How long the ramp is; 0: there is none.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._came: dict[ReplicaId, float] = {}  # those of the last seconds

    def note_start(self, replica: ReplicaId, now: float) -> None:
        """It takes requests from now on, with nothing cached."""
        self._came[replica] = now

    def share(self, replica: ReplicaId, now: float) -> float:
        """Its share of what the others get, from a tenth to 1."""
        came = self._came.get(replica)
        if came is None:
            return 1.0
        share = ramped_share(now - came, self._seconds)
        if share == 1.0:
            del self._came[replica]
        return share

    def forget(self, replica: ReplicaId) -> None:
        """It is gone for good."""
        self._came.pop(replica, None)
