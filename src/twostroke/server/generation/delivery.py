"""How outputs leave the server as they come: gathered into a whole answer, or as a stream."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Protocol

from twostroke.core.errors import TwostrokeError
from twostroke.core.output import RequestOutput
from twostroke.engine.answer import CollectedAnswer
from twostroke.server.generation.memory_limits import num_output_entries
from twostroke.server.generation.response_format import CallTokens, ResponseFormat
from twostroke.server.http.sse import EventStream
from twostroke.server.state.logprobs_budget import LOGPROB_BYTES, HeldLogprobs

logger = logging.getLogger(__name__)


class Delivery(Protocol):
    """Takes the outputs of one generation, on the event loop's thread."""

    def deliver(self, choice: int, output: RequestOutput, *, last: bool) -> None:
        """Take what a step added to a choice; an error that this raises goes to ``fail``."""

    def fail(self, error: Exception) -> None:
        """Take note that nothing more comes, and that the answer is not whole."""


class WholeDelivery:
    """Implements ``Delivery``: gathers all choices.

    Args:
        held: Room for their log-probabilities.

    Attributes:
        answers: One entry for each choice, once all have ended.
    """

    def __init__(self, num_choices: int, held: HeldLogprobs) -> None:
        self._held = held
        self._num_entries = 0
        self.answers: asyncio.Future[list[CollectedAnswer]] = (
            asyncio.get_running_loop().create_future()
        )
        self._answers = [CollectedAnswer() for _ in range(num_choices)]

    def deliver(self, choice: int, output: RequestOutput, *, last: bool) -> None:
        if num_entries := num_output_entries(output):
            self._num_entries += num_entries
            self._held.hold_at_least(self._num_entries * LOGPROB_BYTES)
        self._answers[choice].add(output)
        if last:
            self.answers.set_result(self._answers)

    def fail(self, error: Exception) -> None:
        self.answers.set_exception(error)
        # Read here: the client may have left in this very turn of the event loop, and asyncio logs
        # an exception that is not read.
        self.answers.exception()


class PromptRoom:
    """What a stream holds of the budget: for its client, and for prompts that it has to echo.

    Args:
        held: Has room for all prompts from the start.
        num_entries: Log-probabilities of each prompt.
        n: Samples of each.
    """

    def __init__(self, held: HeldLogprobs, num_entries: Sequence[int], n: int) -> None:
        self._held = held
        self._num_bytes = [count * LOGPROB_BYTES for count in num_entries]
        self._num_to_begin = [n] * len(num_entries)
        self._n = n

    def begin(self, choice: int) -> None:
        """A choice has begun; the last of its prompt needs the prompt no more."""
        prompt = choice // self._n
        self._num_to_begin[prompt] -= 1
        if not self._num_to_begin[prompt]:
            self._num_bytes[prompt] = 0

    def hold(self, num_kept_bytes: int) -> None:
        """Hold what the client leaves, and the prompts; it raises ``LogprobsFullError``."""
        self._held.hold(num_kept_bytes + sum(self._num_bytes))


class StreamedDelivery:
    """Implements ``Delivery``: pushes events into a stream.

    Args:
        tokens: The generation's count, for the format.
        held: Room for what a slow client leaves; what it has taken is not kept.
    """

    def __init__(
        self,
        request_id: str,
        response_format: ResponseFormat,
        stream: EventStream,
        tokens: CallTokens,
        held: PromptRoom,
    ) -> None:
        self._request_id = request_id
        self._format = response_format
        self._stream = stream
        self._tokens = tokens
        self._held = held
        self._begun: set[int] = set()

    def deliver(self, choice: int, output: RequestOutput, *, last: bool) -> None:
        first = choice not in self._begun
        events = self._format.chunk(choice, output, self._tokens, first=first, last=last)
        if first and events:
            self._begun.add(choice)
            self._held.begin(choice)
        if last:
            self._stream.end(events)
        elif events:
            self._stream.push(events)
        if output.logprobs or first:
            self._held.hold(self._stream.num_kept_bytes)

    def fail(self, error: Exception) -> None:
        # Before the first event the response has not started, and the error gets its status.
        if not self._begun:
            self._stream.fail(error)
            return
        if not isinstance(error, TwostrokeError):
            logger.error("request %s failed in mid-stream", self._request_id, exc_info=error)
        self._stream.end(self._format.failure(error))
