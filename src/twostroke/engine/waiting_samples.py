"""Which samples wait for their first tokens, and on whose behalf."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from twostroke.core.output import RequestOutput
from twostroke.core.request import Request
from twostroke.observability.observer import ObservedStep


class WaitingSamples:
    """An observer that counts the samples that have stopped waiting: they ran, or ended before.

    A preempted sample has run, so it does not wait once more.
    """

    def __init__(self) -> None:
        self._num_left: dict[str, int] = {}  # by tenant, since the engine started
        self._changed: dict[str, int] = {}
        self._waiting: set[str] = set()

    def on_add(self, requests: Sequence[Request]) -> None:
        self._waiting.update(request.request_id for request in requests)

    def on_step(self, step: ObservedStep) -> None:
        self._stop_waiting(step.requests)

    def on_end(self, requests: Sequence[Request], outputs: Sequence[RequestOutput]) -> None:
        self._stop_waiting(requests)

    def close(self) -> None:
        """The counts can still be taken."""

    def take(self) -> dict[str, int]:
        """The totals since the engine started, for tenants with more than at the last call."""
        changed, self._changed = self._changed, {}
        return changed

    def begin_again(self) -> None:
        """Count from zero, for another client; nothing waits."""
        self._num_left, self._changed = {}, {}

    def leave(self, tenant: str, num_samples: int) -> None:
        """Count samples that were submitted, but could not be added."""
        self._num_left[tenant] = self._num_left.get(tenant, 0) + num_samples
        self._changed[tenant] = self._num_left[tenant]

    def _stop_waiting(self, requests: Iterable[Request]) -> None:
        if not self._waiting:
            return
        for request in requests:
            if request.request_id in self._waiting:
                self._waiting.remove(request.request_id)
                self.leave(request.tenant, 1)
