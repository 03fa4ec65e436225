"""Requests under which engines have ended, which the next engine gets one by one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from twostroke.core.errors import ErrorMessage
from twostroke.engine.clients.stream import AsyncStream


class Suspects:
    """Any of them may have ended an engine; so each gets one of its own to end, if it does.

    The next is sent once the one before it has got a token, or has ended. All methods run on the
    event loop's thread.

    Args:
        find: The stream of a request that is not through.
        send: Sends one to the engine.
    """

    def __init__(
        self, find: Callable[[str], AsyncStream | None], send: Callable[[str], None]
    ) -> None:
        self._find, self._send = find, send
        self._waiting: deque[str] = deque()
        self._tried = ""

    def __contains__(self, request_id: str) -> bool:
        """Whether it waits, so that the engine does not have it."""
        return request_id in self._waiting

    def note_end(self, streams: dict[str, AsyncStream]) -> None:
        """The engine has ended that had all of these but those that wait.

        Takes out what has ended too many, with an error.
        """
        for request_id, stream in list(streams.items()):
            so_far = stream.so_far
            if so_far is None or request_id in self:
                continue
            if (failure := so_far.lose_engine()) is not None:
                del streams[request_id]
                stream.fail(ErrorMessage.of(failure))

    def begin(self, request_ids: list[str]) -> None:
        """These are to be sent to an engine that has none of them."""
        self._waiting, self._tried = deque(request_ids), ""
        self.send_next()

    def send_next(self) -> None:
        """Send as many as may be sent now."""
        while self._waiting and not self._has_nothing():
            self._tried = self._waiting.popleft()
            self._send(self._tried)

    def _has_nothing(self) -> bool:
        """Whether the one that was sent last is still without a token of this engine."""
        stream = self._find(self._tried)
        return stream is not None and stream.num_engines_lost > 0
