"""Requests under which engines have ended, which the next engine gets one by one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable


class Suspects:
    """Any of them may have ended an engine; so each gets one of its own to end, if it does.

    The next is sent once the one before it has got a token, or has ended. All methods run on the
    event loop's thread.

    Args:
        has_nothing: Whether a request that was sent is still without a token of this engine.
        send: Sends one to the engine.
    """

    def __init__(self, has_nothing: Callable[[str], bool], send: Callable[[str], None]) -> None:
        self._has_nothing, self._send = has_nothing, send
        self._waiting: deque[str] = deque()
        self._tried = ""

    def __contains__(self, request_id: str) -> bool:
        """Whether it waits, so that the engine does not have it."""
        return request_id in self._waiting

    def begin(self, request_ids: list[str]) -> None:
        """These are to be sent to an engine that has none of them."""
        self._waiting, self._tried = deque(request_ids), ""
        self.send_next()

    def send_next(self) -> None:
        """Send as many as may be sent now."""
        while self._waiting and not self._has_nothing(self._tried):
            self._tried = self._waiting.popleft()
            self._send(self._tried)
