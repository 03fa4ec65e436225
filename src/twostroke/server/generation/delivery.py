"""How outputs leave the server as they come: gathered into a whole answer, or as a stream."""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from twostroke.core.errors import TwostrokeError
from twostroke.core.output import RequestOutput
from twostroke.engine.answer import CollectedAnswer
from twostroke.server.generation.response_format import CallTokens, ResponseFormat
from twostroke.server.http.sse import EventStream

logger = logging.getLogger(__name__)


class Delivery(Protocol):
    """Takes the outputs of one generation, on the event loop's thread."""

    def deliver(self, choice: int, output: RequestOutput, *, last: bool) -> None:
        """Take what a step added to a choice; an error that this raises goes to ``fail``."""

    def fail(self, error: Exception) -> None:
        """Take note that nothing more comes, and that the answer is not whole."""


class WholeDelivery:
    """Implements ``Delivery``: gathers all choices.

    Attributes:
        answers: One entry for each choice, once all have ended.
    """

    def __init__(self, num_choices: int) -> None:
        self.answers: asyncio.Future[list[CollectedAnswer]] = (
            asyncio.get_running_loop().create_future()
        )
        self._answers = [CollectedAnswer() for _ in range(num_choices)]

    def deliver(self, choice: int, output: RequestOutput, *, last: bool) -> None:
        self._answers[choice].add(output)
        if last:
            self.answers.set_result(self._answers)

    def fail(self, error: Exception) -> None:
        self.answers.set_exception(error)
        # Read here: the client may have left in this very turn of the event loop, and asyncio logs
        # an exception that is not read.
        self.answers.exception()


class StreamedDelivery:
    """Implements ``Delivery``: pushes events into a stream.

    Args:
        tokens: The generation's count, for the format.
    """

    def __init__(
        self,
        request_id: str,
        response_format: ResponseFormat,
        stream: EventStream,
        tokens: CallTokens,
    ) -> None:
        self._request_id = request_id
        self._format = response_format
        self._stream = stream
        self._tokens = tokens
        self._begun: set[int] = set()

    def deliver(self, choice: int, output: RequestOutput, *, last: bool) -> None:
        first = choice not in self._begun
        events = self._format.chunk(choice, output, self._tokens, first=first, last=last)
        if first and events:
            self._begun.add(choice)
        if last:
            self._stream.end(events)
        elif events:
            self._stream.push(events)

    def fail(self, error: Exception) -> None:
        # Before the first event the response has not started, and the error gets its status.
        if not self._begun:
            self._stream.fail(error)
            return
        if not isinstance(error, TwostrokeError):
            logger.error("request %s failed in mid-stream", self._request_id, exc_info=error)
        self._stream.end(self._format.failure(error))
