"""Which requests a caller may see: all, or those of its own key."""

from __future__ import annotations

from collections.abc import Collection

from twostroke.observability.events import StepEvent


class Visibility:
    """The requests of one tenant, or some of all. Unknown ones are not shown.

    Args:
        tenant: Whose requests are shown; ``None``: anybody's.
        known: Ids of those that are known so far; more are learnt from the steps.
        only: Show no requests but these; ``None``: all.
    """

    def __init__(
        self,
        tenant: str | None,
        known: Collection[str] = (),
        only: Collection[str] | None = None,
    ) -> None:
        self._tenant = tenant
        self._known = set(known)
        self._only = None if only is None else frozenset(only)

    def learn(self, event: StepEvent) -> None:
        """Take note of whose the requests are that start with this step."""
        if self._tenant is not None:
            for started in event.started:
                if started.tenant == self._tenant:
                    self._known.add(started.request_id)

    def concerns(self, event: StepEvent) -> bool:
        """Whether a step ran, took room from or ended a request that is shown."""
        self.learn(event)
        return (
            any(self(share.request_id) for share in event.scheduled)
            or any(self(held.request_id) for held in event.held_back)
            or any(self(finished.request_id) for finished in event.finished)
            or any(self(preempted.request_id) for preempted in event.preempted)
        )

    def forget(self, event: StepEvent) -> None:
        """The requests that ended with this step are in none after it: a feed may last for days."""
        self._known.difference_update(finished.request_id for finished in event.finished)

    def __call__(self, request_id: str) -> bool:
        if self._tenant is not None and request_id not in self._known:
            return False
        return self._only is None or request_id in self._only
