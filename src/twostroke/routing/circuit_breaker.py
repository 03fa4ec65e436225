"""A circuit breaker: a replica that fails again and again gets nothing for a while."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Generic, Literal, NamedTuple

from twostroke.routing.loads import ReplicaId

BreakerState = Literal["closed", "open", "trial"]


class BreakerRule(NamedTuple):
    """The limits: when a replica is left out, and for how long.

    Attributes:
        failures: Number of them within ``window`` seconds that opens the circuit.
        pause: Seconds without a request, the first time.
        factor: By how much each pause is longer than the one before.
        longest: Seconds of the longest pause.
    """

    failures: int = 3
    window: float = 120.0
    pause: float = 10.0
    factor: float = 2.0
    longest: float = 300.0


@dataclass(slots=True)
class _Circuit:
    """One replica's.

    Attributes:
        failures: When it failed, in the last ``window`` seconds.
        num_opened: Pauses since it last was well for a whole window; each is longer.
        closed_at: When it came through its trial.
        until: When its pause ends.
    """

    state: BreakerState = "closed"
    failures: deque[float] = field(default_factory=deque)
    num_opened: int = 0
    closed_at: float = 0.0
    until: float = 0.0


class CircuitBreaker(Generic[ReplicaId]):
    """Leaves replicas out that fail again and again.

    *Closed*, a replica gets requests; some failures within a window *open* its circuit, and it gets
    none for a pause; then comes a *trial*: one request at a time. What it answers closes the
    circuit, a failure opens it for a longer pause. Times are in seconds and never go back.
    """

    def __init__(self, rule: BreakerRule = BreakerRule()) -> None:  # noqa: B008  (a value)
        self._rule = rule
        self._circuits: dict[ReplicaId, _Circuit] = {}

    def note_failure(self, replica: ReplicaId, now: float) -> None:
        """It has ended, or lost what it had."""
        rule, circuit = self._rule, self._circuits.setdefault(replica, _Circuit())
        if self.state(replica, now) == "open":
            return  # it had its pause for what came before
        circuit.failures.append(now)
        while circuit.failures[0] < now - rule.window:
            circuit.failures.popleft()
        if circuit.state == "closed" and len(circuit.failures) < rule.failures:
            return
        if circuit.state == "closed" and now - circuit.closed_at > rule.window:
            circuit.num_opened = 0
        # Far fewer pauses than this reach the longest; the power stays finite.
        pause = rule.pause * rule.factor ** min(circuit.num_opened, 64)
        circuit.until = now + min(pause, rule.longest)
        circuit.state, circuit.num_opened = "open", circuit.num_opened + 1

    def note_answer(self, replica: ReplicaId, now: float) -> None:
        """It has given a token since it failed last."""
        circuit = self._circuits.get(replica)
        if circuit is not None and self.state(replica, now) == "trial":
            circuit.state, circuit.closed_at = "closed", now
            circuit.failures.clear()

    def state(self, replica: ReplicaId, now: float) -> BreakerState:
        """Whether it gets requests, none, or one on trial."""
        circuit = self._circuits.get(replica)
        if circuit is None:
            return "closed"
        if circuit.state == "open" and now >= circuit.until:
            circuit.state = "trial"
        return circuit.state

    def admits(self, replica: ReplicaId, now: float, num_unfinished: int) -> bool:
        """Whether it may get a request.

        Args:
            num_unfinished: Requests that it has.
        """
        state = self.state(replica, now)
        return state == "closed" or (state == "trial" and not num_unfinished)

    def forget(self, replica: ReplicaId) -> None:
        """It is gone for good."""
        self._circuits.pop(replica, None)
