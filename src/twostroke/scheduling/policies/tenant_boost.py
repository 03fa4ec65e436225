"""Boosts under fair scheduling: a tenant need not wait for one that runs more than its share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from twostroke.core.request import Request
from twostroke.core.step import StepPlan

# While a boosted prompt is computed, heavy tenants get one token for this many of the prompt's.
BOOST_RATIO = 4


class TenantBoost:
    """Keeps what runs, by tenant, and evens it out.

    A waiting request deserves to go first if another tenant was served more and has at least two
    requests more running. It takes the place of that tenant's latest request if there is none free.
    So of k tenants that want more than there is, each gets a kth of the places at once.

    The first request of a tenant that had none, waiting or running, is boosted as well: until its
    first token, other tenants with two or more running get a quarter of what it gets in each step.

    What is displaced may have to be computed again. The tenant that displaces owes those tokens,
    and pays with service that it did not take: with credit forgone by idling, and with what the
    other tenant got ahead of it meanwhile. While it owes more than that and its prompt's length, it
    displaces nothing. So what is computed twice costs the engine no more than what tenants did not
    ask of it or waited for, and each wait ends: what runs instead of the tenant pays its debt.

    Args:
        served: Sorts a tenant by how much it was served; first the counter, in cost of tokens.
    """

    def __init__(self, served: Callable[[str], tuple[float, ...]]) -> None:
        self._served = served
        self._running: dict[str, dict[str, Request]] = {}
        self._first: set[str] = set()  # ids of waiting requests whose tenants had none before them
        self._boosted: set[str] = set()  # ids of running requests without a token yet
        self._owed: dict[str, float] = {}

    def deserves(self, request: Request) -> bool:
        """Whether a waiting request goes before those that run."""
        return self._tenant_to_yield(request.tenant) is not None

    def first_to_wait(self, request: Request) -> None:
        """A request waits from now on, and no other of its tenant does."""
        if request.tenant not in self._running:
            self._first.add(request.request_id)

    def enter(self, request: Request) -> None:
        """A request runs from now on."""
        if request.request_id in self._first and self.deserves(request):
            self._boosted.add(request.request_id)
        self._first.discard(request.request_id)
        self._running.setdefault(request.tenant, {})[request.request_id] = request

    def leave(self, request: Request) -> None:
        """It waits or runs no more; harmless if it did not."""
        self._first.discard(request.request_id)
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
        tenant = self._tenant_to_yield(boosted.tenant)
        if tenant is None:
            return None
        owed = self._owed.get(boosted.tenant, 0.0)
        behind = self._served(tenant)[0] - self._served(boosted.tenant)[0]
        if owed >= boosted.num_tokens + behind:
            return None
        candidates = [
            request
            for request in self._running[tenant].values()
            if request.request_id not in self._boosted
        ]
        if not candidates:
            return None
        victim = max(candidates, key=lambda request: request.sequence_number)
        self._owed[boosted.tenant] = owed + victim.num_computed_tokens
        return victim

    def boosted(self, running: Sequence[Request]) -> Sequence[Request]:
        """The requests that are boosted, in their order."""
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
        if not self._boosted.isdisjoint(running):  # its own tenant's prompt holds it up no more
            return limit
        boosted_tokens = sum(
            plan.scheduled[request_id].num_tokens
            for request_id in self._boosted
            if request_id in plan.scheduled
        )
        if not boosted_tokens:
            return limit
        return min(limit, boosted_tokens + boosted_tokens // BOOST_RATIO)

    def _tenant_to_yield(self, to: str) -> str | None:
        """The largest of the tenants that run two more than ``to`` and were served more."""
        least, served = len(self._running.get(to, ())) + 2, self._served(to)
        tenants = [
            name
            for name, running in self._running.items()
            if len(running) >= least and self._served(name) > served
        ]
        return max(
            tenants, key=lambda name: (len(self._running[name]), self._served(name)), default=None
        )
