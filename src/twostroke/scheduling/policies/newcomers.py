"""Under fair scheduling: whom a tenant that has nothing running may displace and overtake, and how
often.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from twostroke.core.request import Request
from twostroke.core.step import StepPlan

# While a newcomer's prompt is computed, tenants with several requests get at most one token for so
# many of its own.
HOLD_BACK = 4


class Newcomers:
    """Keeps what runs, by tenant. A hog is a tenant with two requests or more running.

    A newcomer is a waiting request of a tenant that has nothing running, where a hog has been
    served more. It takes the place of the hog's latest request if there is none free, and until its
    first token the hogs get a quarter of what it gets in each step. What it displaces may have to
    be computed again: its tenant owes those tokens until it has forgone as much credit by idling,
    and while it owes more than its prompt is long it displaces nobody. So what is computed twice
    costs the engine no more than what tenants did not ask of it.

    Args:
        served: Sorts a tenant by how much it was served.
    """

    def __init__(self, served: Callable[[str], tuple[float, ...]]) -> None:
        self._served = served
        self._running: dict[str, dict[str, Request]] = {}
        self._hurrying: set[str] = set()
        self._owed: dict[str, float] = {}

    def is_newcomer(self, request: Request) -> bool:
        return request.tenant not in self._running and self._largest_hog(request.tenant) is not None

    def enter(self, request: Request, *, hurries: bool) -> None:
        """A request runs from now on."""
        self._running.setdefault(request.tenant, {})[request.request_id] = request
        if hurries:
            self._hurrying.add(request.request_id)

    def leave(self, request: Request) -> None:
        """It runs no more; harmless if it did not."""
        self._hurrying.discard(request.request_id)
        running = self._running.get(request.tenant)
        if running is not None:
            running.pop(request.request_id, None)
            if not running:
                del self._running[request.tenant]

    def has_answered(self, request: Request) -> None:
        self._hurrying.discard(request.request_id)

    def forgo(self, tenant: str, credit: float) -> None:
        """The tenant loses credit that it did not use: that pays for what it displaced."""
        left = self._owed.pop(tenant, 0.0) - credit
        if left > 0:
            self._owed[tenant] = left

    def displace(self, newcomer: Request) -> Request | None:
        """The request that is to be preempted for ``newcomer``, whose tenant owes for it from now
        on.
        """
        owed = self._owed.get(newcomer.tenant, 0.0)
        hog = self._largest_hog(newcomer.tenant)
        if hog is None or owed >= newcomer.num_tokens:
            return None
        others = [r for r in self._running[hog].values() if r.request_id not in self._hurrying]
        if not others:
            return None
        victim = max(others, key=lambda request: request.sequence_number)
        self._owed[newcomer.tenant] = owed + victim.num_computed_tokens
        return victim

    def hurrying(self, requests: Sequence[Request]) -> Sequence[Request]:
        """Those of the requests that are newcomers without a token yet, in the same order."""
        return (
            [request for request in requests if request.request_id in self._hurrying]
            if self._hurrying
            else ()
        )

    def budget(self, request: Request, plan: StepPlan, most: int) -> int:
        """Most tokens that a step may carry if ``request`` is in it."""
        if not self._hurrying or request.request_id in self._hurrying:
            return most
        running: Mapping[str, Request] = self._running.get(request.tenant, {})
        if len(running) + (request.request_id not in running) < 2:
            return most
        hurried = sum(
            plan.scheduled[name].num_tokens for name in self._hurrying if name in plan.scheduled
        )
        return min(most, hurried + hurried // HOLD_BACK) if hurried else most

    def _largest_hog(self, but: str) -> str | None:
        """Of those that were served more than the tenant ``but``, the one that was served most."""
        hogs = [
            tenant
            for tenant, running in self._running.items()
            if len(running) > 1 and tenant != but
        ]
        hog = max(hogs, key=self._served, default=None)
        return hog if hog is not None and self._served(hog) > self._served(but) else None
