"""Questions to an engine on another thread, whose answers come back by number."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from twostroke.core.errors import EngineDeadError, ErrorMessage

ANSWER_SECONDS = 60.0
T = TypeVar("T")


class Answers(Generic[T]):
    """Futures of the event loop that waits; all methods run on its thread.

    Args:
        seconds: How long an answer is waited for: a step may be running.
    """

    def __init__(self, seconds: float = ANSWER_SECONDS) -> None:
        self._seconds = seconds
        self._futures: dict[int, asyncio.Future[T]] = {}
        self._num_asked = 0

    async def ask(self, send: Callable[[int], None]) -> T:
        """Send a question under a fresh number and wait for its answer.

        Raises:
            EngineDeadError: None came.
        """
        number, self._num_asked = self._num_asked, self._num_asked + 1
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._futures[number] = future
        send(number)
        try:
            async with asyncio.timeout(self._seconds):
                return await future
        except TimeoutError:
            message = f"the engine has not answered for {self._seconds:g} s"
            raise EngineDeadError(message, hint="see /health") from None
        finally:
            self._futures.pop(number, None)

    def put(self, number: int, value: T | None, error: ErrorMessage | None = None) -> None:
        """Give an answer, or why there is none, to the question of this number."""
        future = self._futures.get(number)
        if future is None or future.done():
            return
        if error is not None:
            future.set_exception(error.to_exception())
        elif value is not None:
            future.set_result(value)

    def fail_all(self, error: ErrorMessage) -> None:
        """No answers will come."""
        for number in list(self._futures):
            self.put(number, None, error)
