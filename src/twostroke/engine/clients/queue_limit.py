"""Which calls may wait: how many samples, and how many of them for one tenant."""

from __future__ import annotations

from twostroke.core.errors import QueueFullError


class QueueLimit:
    """Bounds what waits, so that no tenant's requests keep those of another out.

    A tenant that has nothing waiting is always let in, and so is one whose waiting samples are no
    more than its share, which is the limit divided by the tenants that have any. So the queue may
    exceed the limit, but a tenant that fills it delays and refuses only itself.

    Args:
        max_waiting: Samples of all tenants together; ``None`` takes them all.

    Attributes:
        num_left: Samples of each tenant that have left the queue, as the engine tells.
    """

    def __init__(self, max_waiting: int | None) -> None:
        self._max_waiting = max_waiting
        self.num_left: dict[str, int] = {}
        self._num_submitted: dict[str, int] = {}

    def check(self, tenant: str, num_samples: int) -> None:
        """Raise ``QueueFullError`` if the tenant has to wait before it may send a call.

        Args:
            num_samples: Samples of all prompts of the call.
        """
        limit, own = self._max_waiting, self._num_waiting(tenant)
        if limit is None or not own:
            return
        waiting = {name: num for name in self._num_submitted if (num := self._num_waiting(name))}
        total = sum(waiting.values())
        share = limit // len(waiting | {tenant: own})
        if total + num_samples <= limit or own + num_samples <= share:
            return
        message = f"{total} requests wait already, and at most {limit} may"
        if len(waiting) > 1:
            message += f"; {own} are this key's, whose share is {share}"
        if num_samples > 1:
            message += f"; this call adds {num_samples} (prompts times n)"
        hint = "try again when some have been answered"
        if num_samples > 1:
            hint += ", or send fewer prompts or a lower n"
        raise QueueFullError(message, hint=f"{hint}; the server's limit is --max-queued-requests")

    def add(self, tenant: str, num_samples: int) -> None:
        """Count samples that are on their way to the engine."""
        self._num_submitted[tenant] = self._num_submitted.get(tenant, 0) + num_samples

    @property
    def num_waiting(self) -> int:
        """Samples that wait for their first step, or are on their way to the engine."""
        return sum(self._num_submitted.values()) - sum(self.num_left.values())

    def _num_waiting(self, tenant: str) -> int:
        return self._num_submitted.get(tenant, 0) - self.num_left.get(tenant, 0)
