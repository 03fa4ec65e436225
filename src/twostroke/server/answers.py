"""What becomes of a call's outputs as they come: gathered into a whole answer, or chunks of a
stream.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from msgspec import UNSET, UnsetType

from twostroke.core.errors import TwostrokeError
from twostroke.core.logprobs import PositionLogprobs
from twostroke.core.output import RequestOutput
from twostroke.server.errors import encode_error
from twostroke.server.protocol import GenerationFields
from twostroke.server.responses import Usage
from twostroke.server.sse import EventStream, event

logger = logging.getLogger(__name__)

# Of a chunk: OpenAI leaves it out, or writes null where usage comes at the end; vLLM can give it
# with every chunk.
RunningUsage = Usage | UnsetType | None


@dataclass(slots=True)
class Sample:
    """One choice, gathered to its end. ``token_ids`` and ``logprobs`` are parallel where both are
    there.
    """

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[PositionLogprobs] = field(default_factory=list)
    prompt_logprobs: list[PositionLogprobs] | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None

    def add(self, output: RequestOutput) -> None:
        self.text += output.text
        self.token_ids += output.token_ids
        self.logprobs += output.logprobs or ()
        if output.prompt_logprobs is not None:
            self.prompt_logprobs = (self.prompt_logprobs or []) + output.prompt_logprobs
        if output.finish_reason is not None:
            self.finish_reason, self.stop_reason = output.finish_reason.value, output.stop_reason

    def num_entries(self) -> int:
        """Tokens and log-probabilities: what it takes to write it out."""
        positions = (*self.logprobs, *(self.prompt_logprobs or ()))
        return len(self.token_ids) + sum(len(position.top) for position in positions)


class Shape(Protocol):
    """How outputs become what one route promises. Choices are numbered over all prompts: ``prompt *
    n + sample``.
    """

    def chunk(
        self, index: int, output: RequestOutput, usage: RunningUsage, *, first: bool
    ) -> list[object]:
        """The events for what a step added to a choice (``first``: it has had none yet)."""

    def usage_chunk(self, usage: Usage) -> object:
        """The last event, where usage is asked for."""

    def complete(self, samples: Sequence[Sample], usage: Usage) -> object:
        """The whole answer."""


class Answer(Protocol):
    """What becomes of outputs, on the event loop's thread, while they come."""

    def add(self, index: int, output: RequestOutput, *, last: bool) -> None:
        """What a step added to a choice; what this raises goes to ``fail``."""

    def fail(self, error: Exception) -> None:
        """There will be no more, and the answer is not whole."""


class WholeAnswer:
    """Implements ``Answer``: gathers all choices.

    Attributes:
        samples: The choices, once all have ended.
    """

    def __init__(self, num_choices: int) -> None:
        self.samples: asyncio.Future[list[Sample]] = asyncio.get_running_loop().create_future()
        self._samples = [Sample() for _ in range(num_choices)]

    def add(self, index: int, output: RequestOutput, *, last: bool) -> None:
        self._samples[index].add(output)
        if last:
            self.samples.set_result(self._samples)

    def fail(self, error: Exception) -> None:
        self.samples.set_exception(error)
        # seen: whoever waited may have left in this very turn of the event loop
        self.samples.exception()


class StreamedAnswer:
    """Implements ``Answer``: pushes chunks into a stream.

    Args:
        usage: What has been used so far.
        usage_at_end: The last chunk carries the usage, whether or not it was asked for.
    """

    def __init__(
        self,
        request_id: str,
        shape: Shape,
        fields: GenerationFields,
        stream: EventStream,
        usage: Callable[[], Usage],
        *,
        usage_at_end: bool,
    ) -> None:
        self._request_id = request_id
        self._shape = shape
        self._stream = stream
        self._count = usage
        self._continuous, self._usage_at_end = fields.continuous_usage, usage_at_end
        self._include_usage = fields.include_usage
        self._begun: set[int] = set()

    def add(self, index: int, output: RequestOutput, *, last: bool) -> None:
        usage: RunningUsage = None if self._include_usage else UNSET
        if self._continuous or (last and self._usage_at_end):
            usage = self._count()
        events = self._shape.chunk(index, output, usage, first=index not in self._begun)
        if events:
            self._begun.add(index)
        if last:
            if self._include_usage:
                events.append(self._shape.usage_chunk(self._count()))
            self._stream.end(b"".join(map(event, events)))
        elif events:
            self._stream.push(b"".join(map(event, events)))

    def fail(self, error: Exception) -> None:
        # Before the first event the response has not started, and the error gets its status.
        if not self._begun:
            self._stream.fail(error)
            return
        if not isinstance(error, TwostrokeError):
            logger.error("request %s failed in mid-stream", self._request_id, exc_info=error)
        self._stream.end(b"data: " + encode_error(error) + b"\n\n")
