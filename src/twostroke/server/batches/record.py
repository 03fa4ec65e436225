"""What is known of one batch, whatever API it came by; stored whenever its status changes."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Api = Literal["openai", "messages"]
Status = Literal[
    "validating",
    "failed",
    "in_progress",
    "finalizing",
    "completed",
    "expired",
    "cancelling",
    "cancelled",
]
MAX_MISTAKES, MAX_MESSAGE_LENGTH = 10, 300
ENDED: frozenset[Status] = frozenset({"failed", "completed", "expired", "cancelled"})
# How long its requests may be answered, and how long it is known, in seconds.
WINDOW, KEPT = 24 * 3600, 30 * 24 * 3600


class Mistake(Struct, kw_only=True):
    """Why a batch has failed, or what is missing of its output."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None


class Times(Struct, kw_only=True, omit_defaults=True):
    """When a status was reached, in Unix seconds."""

    in_progress: int | None = None
    finalizing: int | None = None
    cancelling: int | None = None
    ended: int | None = None


class BatchRecord(Struct, kw_only=True):
    """One batch.

    Attributes:
        tenant: Whose it is.
        url: What all of its requests ask.
        input_file: The lines of its requests.
        output_file, error_file: What they were answered, and what became of all others; the parts
            of both files have the numbers of these lines. Empty at the end where there are none.
        outcome: The status in which it will end, once that is known.
        created, expires: Unix seconds; what is not answered by then has expired.
        total: Its requests, once they have been counted.
        completed, failed: How many of them were answered, and how many were not.
        output_seconds: How long what it writes is kept.
        mistakes: See ``Mistake``; at most ``MAX_MISTAKES``.
        reserved: Bytes kept for what has to be said of requests that are left unanswered.
    """

    id: str
    tenant: str
    api: Api
    url: str
    input_file: str
    output_file: str
    error_file: str
    status: Status = "validating"
    outcome: Status | None = None
    created: int
    expires: int
    times: Times
    total: int = 0
    completed: int = 0
    failed: int = 0
    output_seconds: int = KEPT
    metadata: dict[str, str] | None = None
    mistakes: list[Mistake] = []
    reserved: int = 0

    def note(self, code: str, message: str, line: int | None = None) -> None:
        """Add a mistake, if there is room for it."""
        if len(self.mistakes) < MAX_MISTAKES:
            text = message[:MAX_MESSAGE_LENGTH]
            self.mistakes.append(Mistake(code=code, message=text, line=line))

    @property
    def has_ended(self) -> bool:
        return self.status in ENDED

    @property
    def shown_status(self) -> Status:
        """One that is cancelled is in the middle of that until the end."""
        cancelling = self.outcome == "cancelled" and not self.has_ended
        return "cancelling" if cancelling else self.status
