"""Boosts under fair scheduling: a tenant that has nothing running need not wait for heavy ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from twostroke.core.request import Request
from twostroke.core.step import StepPlan

# While a boosted prompt is computed, heavy tenants get one token for so many of the prompt's.
BOOST_RATIO = 4


class TenantBoost:
    """Keeps what runs, by tenant. A tenant is heavy while two or more of its requests run.

    A waiting request deserves a boost if its tenant has nothing running and a heavy tenant has been
    served more. It takes the place of that tenant's latest request if there is none free, and until
    its first token heavy tenants get a quarter of what it gets in each step.

    What it displaces may have to be computed again. The boosted tenant owes those tokens until it
    has forgone as much credit by idling, and while it owes more than its prompt is long, it
    displaces nothing. So what is computed twice costs the engine no more than what tenants did not
    ask of it.

    Args:
        served: Sorts a tenant by how much it was served.
    """

    def __init__(self, served: Callable[[str], tuple[float, ...]]) -> None:
        self._served = served
        self._running: dict[str, dict[str, Request]] = {}
        self._boosted: set[str] = set()  # ids of running requests without a token yet
        self._owed: dict[str, float] = {}

    def deserves(self, request: Request) -> bool:
        """Whether a waiting request is to be boosted."""
        return request.tenant not in self._running and self._heaviest(request.tenant) is not None

    def enter(self, request: Request, *, boosted: bool) -> None:
        """A request runs from now on."""
        self._running.setdefault(request.tenant, {})[request.request_id] = request
        if boosted:
            self._boosted.add(request.request_id)

    def leave(self, request: Request) -> None:
        """It runs no more; harmless if it did not."""
        self._boosted.discard(request.request_id)
        running = self._running.get(request.tenant)
        if running is not None:
            running.pop(request.request_id, None)
            if not running:
                del self._running[request.tenant]

    def end_boost(self, request: Request) -> None:
        """It has got its first token."""
        self._boosted.discard(request.request_id)

    def forgo_credit(self, tenant: str, credit: float) -> None:
        """The tenant loses credit that it did not use: that pays for what it displaced."""
        left = self._owed.pop(tenant, 0.0) - credit
        if left > 0:
            self._owed[tenant] = left

    def pick_displaced(self, boosted: Request) -> Request | None:
        """The request to preempt for ``boosted``, whose tenant owes for it from now on."""
        owed = self._owed.get(boosted.tenant, 0.0)
        heavy = self._heaviest(boosted.tenant)
        if heavy is None or owed >= boosted.num_tokens:
            return None
        candidates = [
            request
            for request in self._running[heavy].values()
            if request.request_id not in self._boosted
        ]
        if not candidates:
            return None
        victim = max(candidates, key=lambda request: request.sequence_number)
        self._owed[boosted.tenant] = owed + victim.num_computed_tokens
        return victim

    def boosted(self, running: Sequence[Request]) -> Sequence[Request]:
        """Those of the requests that are boosted, in the same order."""
        if not self._boosted:
            return ()
        return [request for request in running if request.request_id in self._boosted]

    def token_limit(self, request: Request, plan: StepPlan, limit: int) -> int:
        """Most tokens that a step may carry if ``request`` is in it."""
        if not self._boosted or request.request_id in self._boosted:
            return limit
        running: Mapping[str, Request] = self._running.get(request.tenant, {})
        if len(running) + (request.request_id not in running) < 2:
            return limit
        boosted_tokens = sum(
            plan.scheduled[request_id].num_tokens
            for request_id in self._boosted
            if request_id in plan.scheduled
        )
        if not boosted_tokens:
            return limit
        return min(limit, boosted_tokens + boosted_tokens // BOOST_RATIO)

    def _heaviest(self, but: str) -> str | None:
        """The heavy tenant that was served most, if it was served more than ``but``."""
        heavy = [name for name, running in self._running.items() if len(running) > 1]
        heaviest = max((name for name in heavy if name != but), key=self._served, default=None)
        if heaviest is None or self._served(heaviest) <= self._served(but):
            return None
        return heaviest
