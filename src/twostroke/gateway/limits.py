"""Requests and tokens per minute, counted by the ``limits`` library in this process or in Redis.

Windows are fixed: a minute begins with a key's first request and forgets everything at its end.
Counting is one addition, so that servers which share a Redis cannot miss each other's requests. At
the seam of two minutes a client can be served twice its limit.
"""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from limits import RateLimitItem, RateLimitItemPerSecond

from twostroke.core.errors import RateLimitError, RequestRateError, TokenRateError
from twostroke.gateway.limit_storage import NAMESPACE, LimitStorage
from twostroke.gateway.options import GatewayOptions
from twostroke.gateway.tally import Tally

WINDOW_SECONDS = 60


class Window(NamedTuple):
    """One limit at one moment. ``resets_in`` seconds later all of it is free again.

    ``length`` is that of the whole window, also in seconds.
    """

    limit: int
    remaining: int
    resets_in: float
    length: int


class RateLimitSnapshot:
    """What its key's limits left to one HTTP request when it arrived.

    Args:
        counted: Whether the request was within the limit on requests.
        tally: What runs already; a request that ends meanwhile moves from there into the window.
    """

    def __init__(
        self, requests: Window | None, counted: bool, tokens: Window | None, tally: Tally
    ) -> None:
        self._requests = requests
        self._counted = counted
        self._tokens = tokens
        self._tally = tally
        self._written_before = tally.written

    def check(self) -> None:
        """Raise if nothing is left.

        Raises:
            RequestRateError, TokenRateError: With the numbers, and when to try again.
        """
        if self._requests is not None and not self._counted:
            limit = f"{self._requests.limit} requests per minute"
            raise _exceeded(
                RequestRateError, f"the key's limit of {limit} is used up", self._requests
            )
        self.check_tokens(1)

    def check_tokens(self, num_tokens: int) -> int | None:
        """``tokens_left``; raises ``TokenRateError`` if these are fewer than ``num_tokens``."""
        left = self.tokens_left()
        if self._tokens is None or left is None or num_tokens <= left:
            return left
        used, limit = self._tokens.limit - left, self._tokens.limit
        message = (
            f"the key's limit is {limit} tokens per minute: {used} used or reserved, {num_tokens}"
            " more requested"
        )
        hint = (
            f"ask for at most {limit} tokens, prompts and max_tokens together"
            if num_tokens > limit
            else None
        )
        raise _exceeded(TokenRateError, message, self._tokens, hint)

    def tokens_left(self) -> int | None:
        """What running requests may use is subtracted; ``None`` without a limit on tokens."""
        if self._tokens is None:
            return None
        newly_written = self._tally.written - self._written_before
        return max(0, self._tokens.remaining - newly_written - self._tally.outstanding())

    def headers(self) -> list[tuple[bytes, bytes]]:
        """The limits under OpenAI's names, as of now."""
        headers = []
        for name, window, left in (
            ("requests", self._requests, self._requests and self._requests.remaining),
            ("tokens", self._tokens, self.tokens_left()),
        ):
            if window is not None:
                # A request that still runs opens a window when it ends.
                reset = window.resets_in or (window.length if left != window.limit else 0)
                headers += [
                    (f"x-ratelimit-limit-{name}", str(window.limit)),
                    (f"x-ratelimit-remaining-{name}", str(left)),
                    (f"x-ratelimit-reset-{name}", format_duration(reset)),
                ]
        return [(name.encode(), value.encode()) for name, value in headers]


class Limits:
    """Counts what each tenant does.

    Args:
        window_seconds: Length of the "minute".

    Raises:
        ConfigError: See ``GatewayOptions``.
    """

    def __init__(self, options: GatewayOptions, *, window_seconds: int = WINDOW_SECONDS) -> None:
        self._requests = _item(options.requests_per_minute, window_seconds)
        self._tokens = _item(options.tokens_per_minute, window_seconds)
        self._storage = LimitStorage(options.rate_limit_storage, self._catch_up)
        self._window_seconds = window_seconds
        self._tallies: dict[str, Tally] = {}

    async def count_request(self, tenant: str) -> RateLimitSnapshot:
        """Count one request, refused ones too, and look at what is left.

        Raises:
            LimitStorageError: The storage does not answer.
        """
        counted, requests, tokens = True, None, None
        if self._requests is not None:
            counted = await self._storage.hit(self._requests, "requests", tenant)
            requests = await self._window(self._requests, "requests", tenant)
        if self._tokens is not None:
            tokens = await self._window(self._tokens, "tokens", tenant)
        return RateLimitSnapshot(requests, counted, tokens, self.tally(tenant))

    def tally(self, tenant: str) -> Tally:
        """What the tenant has running in this process."""
        if tenant not in self._tallies:
            self._tallies[tenant] = Tally(self._writer(tenant), self._window_seconds)
        return self._tallies[tenant]

    async def close(self) -> None:
        """Write what has ended, and close the connections to the storage."""
        for tally in self._tallies.values():
            await tally.flush()
        await self._storage.close()

    def _catch_up(self) -> None:
        """What has ended while the storage was away is written."""
        for tally in self._tallies.values():
            tally.write_ended()

    def _writer(self, tenant: str) -> Callable[[int], Awaitable[None]]:
        async def write(num_tokens: int) -> None:
            # Beyond the limit, too: what was used counts against the next request.
            if self._tokens is not None:
                await self._storage.hit(self._tokens, "tokens", tenant, cost=num_tokens)

        return write

    async def _window(self, item: RateLimitItem, *names: str) -> Window:
        stats = await self._storage.window(item, *names)
        return Window(
            item.amount,
            stats.remaining,
            max(0.0, stats.reset_time - time.time()),
            item.get_expiry(),
        )


def format_duration(seconds: float) -> str:
    """Seconds as OpenAI writes them: ``850ms``, ``12s``, ``1m0s``; rounded up."""
    milliseconds = math.ceil(seconds * 1000)
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, rest = divmod(math.ceil(milliseconds / 1000), 60)
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"


def _exceeded(
    kind: type[RateLimitError], message: str, window: Window, hint: str | None = None
) -> RateLimitError:
    seconds = max(1, math.ceil(window.resets_in))
    return kind(message, retry_after=seconds, hint=hint or f"try again in {seconds} s")


def _item(amount: int | None, seconds: int) -> RateLimitItem | None:
    return None if amount is None else RateLimitItemPerSecond(amount, seconds, NAMESPACE)
