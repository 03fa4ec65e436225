"""The seam of scheduling policies: the order of the waiting queue, and boosts within it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from twostroke.core.request import Request
from twostroke.core.step import StepPlan

Rank = tuple[float, ...]


class Boost(Protocol):
    """Lets a waiting request go before those that run, and displace one of them."""

    def deserves(self, request: Request) -> bool:
        """Whether the request that is to be admitted next is boosted."""
        ...

    def pick_displaced(self, boosted: Request) -> Request | None:
        """The running request to preempt so that ``boosted`` has room; ``None``: it has to wait."""
        ...

    def boosted(self, running: Sequence[Request]) -> Sequence[Request]:
        """The running requests whose prompts go before the tokens of all others, in order."""
        ...

    def token_limit(self, request: Request, plan: StepPlan, limit: int) -> int:
        """Most tokens that a step may carry in all if ``request`` is in it; at most ``limit``."""
        ...


class NoBoost:
    """Running requests go first, always."""

    def deserves(self, request: Request) -> bool:
        return False

    def pick_displaced(self, boosted: Request) -> Request | None:
        return None

    def boosted(self, running: Sequence[Request]) -> Sequence[Request]:
        return ()

    def token_limit(self, request: Request, plan: StepPlan, limit: int) -> int:
        return limit


class SchedulingPolicy(Protocol):
    """Owns the waiting requests. A smaller rank goes first; ranks are unique.

    Attributes:
        ranks_change: Whether the rank of a running request may change while it runs.
        boost: Which waiting requests go before running ones.
    """

    @property
    def ranks_change(self) -> bool: ...

    @property
    def boost(self) -> Boost: ...

    def rank(self, request: Request) -> Rank:
        """Its place in the order. Under a shortage of blocks the largest rank is preempted."""
        ...

    def push(self, request: Request) -> None:
        """Queue a request: a new one, or one that was preempted."""
        ...

    def peek(self) -> Request | None:
        """The request to admit next; ``None`` if there is none, or if all are held back."""
        ...

    def pop(self) -> Request:
        """Remove, and return, the request that ``peek`` gave: it is admitted."""
        ...

    def remove(self, request: Request) -> None:
        """Remove a waiting request: it was aborted, or waits elsewhere."""
        ...

    def finished(self, request: Request) -> None:
        """A running request has ended; for one that waits there is ``remove``."""
        ...

    def charge(self, request: Request, *, prompt_tokens: int = 0, output_tokens: int = 0) -> None:
        """Count what a request got. Called once for each token.

        Prompt tokens count when they are first scheduled (not those that the cache held, nor those
        computed again after a preemption), output tokens when they are known.
        """
        ...

    def __len__(self) -> int:
        """Number of waiting requests."""
        ...
