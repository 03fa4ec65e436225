"""From the parts of an answer to output items, and to the events of each change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from twostroke.server.openai.logprobs import ChatTokenLogprob
from twostroke.server.responses.events import Event
from twostroke.server.responses.objects import OutputItem
from twostroke.server.responses.open_items import (
    IN_PROGRESS,
    OpenCall,
    OpenItem,
    OpenMessage,
    OpenReasoning,
)
from twostroke.server.responses.request_tools import CalledName
from twostroke.text.answer_parsing.parts import (
    AnswerPart,
    CallArguments,
    CallStarted,
    Content,
    Reasoning,
)

COMPLETED = "completed"


class OutputWriter:
    """The output of one response, item by item: one is open at a time.

    White space between two calls, or between a thought and a call, is no message.

    Args:
        called: The functions of namespaces, by the names that the model calls them.
    """

    def __init__(self, called: Mapping[str, CalledName] | None = None) -> None:
        self._called = called or {}
        self._closed: list[OutputItem] = []
        self._open: OpenItem | None = None
        self._space = ""
        self._space_logprobs: list[ChatTokenLogprob] = []

    def add(
        self, parts: Sequence[AnswerPart], logprobs: Sequence[ChatTokenLogprob] = ()
    ) -> list[Event]:
        """Write what a step brought.

        Args:
            logprobs: Those of the tokens of a step whose parts are content alone.
        """
        events: list[Event] = []
        if logprobs and not parts:
            parts = [Content("")]
        for part in parts:
            match part:
                case Content(text):
                    events += self._add_content(text, logprobs)
                case Reasoning(text):
                    events += self._add_reasoning(text)
                case CallStarted(_, name):
                    events += self._begin(self._new_call(name))
                case CallArguments(_, text):
                    if text and isinstance(self._open, OpenCall):
                        events.append(self._open.extend(text))
        return events

    def finish(self, status: str, *, whole: bool = True) -> list[Event]:
        """Close what is open, with its status.

        Args:
            whole: An answer without any item gets an empty message.
        """
        events = self._begin_message() if self._open is None and whole else []
        return events + self._end(status)

    def items(self) -> list[OutputItem]:
        """The output so far."""
        return self._closed + ([] if self._open is None else [self._open.item(IN_PROGRESS)])

    def _add_content(self, text: str, logprobs: Sequence[ChatTokenLogprob]) -> list[Event]:
        if isinstance(self._open, OpenMessage):
            return [self._open.extend(text, logprobs)]
        self._space += text
        self._space_logprobs += logprobs
        return [] if self._space == "" or self._space.isspace() else self._begin_message()

    def _begin_message(self) -> list[Event]:
        text, logprobs = self._space, self._space_logprobs
        message = OpenMessage(self._next_index())
        events = self._begin(message)
        return [*events, message.extend(text, logprobs)] if text or logprobs else events

    def _add_reasoning(self, text: str) -> list[Event]:
        if isinstance(self._open, OpenReasoning):
            return [self._open.extend(text)]
        thought = OpenReasoning(self._next_index())
        return [*self._begin(thought), thought.extend(text)]

    def _new_call(self, name: str) -> OpenCall:
        called = self._called.get(name)
        if called is None:
            return OpenCall(self._next_index(), name)
        return OpenCall(self._next_index(), called.name, called.namespace)

    def _next_index(self) -> int:
        return len(self._closed) + (self._open is not None)

    def _begin(self, item: OpenItem) -> list[Event]:
        events = self._end(COMPLETED)
        self._open = item
        self._space, self._space_logprobs = "", []
        return events + item.begin()

    def _end(self, status: str) -> list[Event]:
        if self._open is None:
            return []
        ended, self._open = self._open, None
        self._closed.append(ended.item(status))
        return ended.end(status)
