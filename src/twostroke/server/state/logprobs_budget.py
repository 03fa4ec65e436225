"""How much memory the log-probabilities of unfinished answers may take, in the whole server."""

from __future__ import annotations

from collections import Counter

from twostroke.core.errors import InvalidRequestError, LogprobsFullError
from twostroke.core.flags.byte_sizes import format_bytes

# What one takes while its answer is put together: 170 bytes as it is kept, 480 with its JSON.
LOGPROB_BYTES = 500
DEFAULT_LOGPROBS_MEMORY = 2**30


class LogprobsBudget:
    """Bytes that answers in flight may hold, and which tenant's they are.

    A tenant may hold as many as remain free after it, so that there is always room for another;
    where there are no keys, all of them. Used on the event loop's thread.

    Args:
        max_bytes: Limit for all tenants together.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._held: Counter[str] = Counter()

    @property
    def num_held_bytes(self) -> int:
        return self._held.total()

    def reserve(self, tenant: str, num_bytes: int, param: str = "logprobs") -> HeldLogprobs:
        """Room for one call, which is given back with ``release``.

        Args:
            param: The field that asks for log-probabilities.

        Raises:
            InvalidRequestError: There would not be room for it on an idle server.
            LogprobsFullError: Other calls hold too much.
        """
        largest = self._max_bytes // 2 if tenant else self._max_bytes
        if num_bytes > largest:
            message = (
                f"the answers may have {format_bytes(num_bytes)} of log-probabilities, a call"
                f" {format_bytes(largest)}"
            )
            hint = (
                "lower max_tokens, n or the number of log-probabilities, or send several requests;"
                " the server's limit is --max-logprobs-memory"
            )
            raise InvalidRequestError(message, param=param, hint=hint)
        held = HeldLogprobs(self, tenant)
        held.hold(num_bytes)
        return held

    def change(self, tenant: str, num_bytes: int) -> None:
        """Count bytes more, or less if negative; raises ``LogprobsFullError`` if that is too much.

        What a tenant gives back is always taken.
        """
        free_now = self._max_bytes - self.num_held_bytes
        left_to_others = self._held[tenant] + num_bytes if tenant else 0
        if num_bytes > 0 and free_now - num_bytes < left_to_others:
            whose = "this key's unfinished answers" if tenant else "unfinished answers"
            message = (
                f"{whose} hold {format_bytes(self._held[tenant])} of log-probabilities; this needs"
                f" {format_bytes(num_bytes)} more, of {format_bytes(max(0, free_now))} free"
            )
            hint = (
                "try again when some have been answered; send max_tokens, or ask for fewer"
                " log-probabilities; the server's limit is --max-logprobs-memory"
            )
            raise LogprobsFullError(message, hint=hint)
        self._held[tenant] += num_bytes
        if not self._held[tenant]:
            del self._held[tenant]


class HeldLogprobs:
    """What one call holds of the budget."""

    def __init__(self, budget: LogprobsBudget, tenant: str) -> None:
        self._budget = budget
        self._tenant = tenant
        self._num_bytes = 0
        self._released = False

    def hold(self, num_bytes: int) -> None:
        """Hold this many bytes from now on; raises ``LogprobsFullError`` if there is no room."""
        if not self._released and num_bytes != self._num_bytes:
            self._budget.change(self._tenant, num_bytes - self._num_bytes)
            self._num_bytes = num_bytes

    def hold_at_least(self, num_bytes: int) -> None:
        """``hold`` this many bytes, unless more are held already."""
        if num_bytes > self._num_bytes:
            self.hold(num_bytes)

    def release(self) -> None:
        """Give everything back, and hold nothing more; harmless when repeated."""
        self.hold(0)
        self._released = True
