"""An output item while it is being written: what it holds so far, and the events of its growth."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from msgspec import UNSET, UnsetType

from twostroke.server.openai.logprobs import ChatTokenLogprob
from twostroke.server.responses.events import (
    CallArgumentsDelta,
    CallArgumentsDone,
    ContentPartAdded,
    ContentPartDone,
    Event,
    OutputItemAdded,
    OutputItemDone,
    OutputTextDelta,
    OutputTextDone,
    ReasoningTextDelta,
    ReasoningTextDone,
)
from twostroke.server.responses.objects import (
    OutputCall,
    OutputMessage,
    OutputReasoning,
    OutputText,
    ReasoningText,
)

IN_PROGRESS = "in_progress"


def new_id(prefix: str) -> str:
    """An id that occurs nowhere else: ``msg_``, ``rs_``, ``fc_`` or ``call_`` and 32 digits."""
    return f"{prefix}_{uuid.uuid4().hex}"


class OpenMessage:
    """Text for the user.

    All three kinds: ``begin`` gives the events that announce the item, ``extend`` the one of a
    piece, ``end`` those that close it (as ``completed`` or ``incomplete``), ``item`` what is
    written so far. The item is at place ``index`` of the output.
    """

    def __init__(self, index: int) -> None:
        self._index, self._id = index, new_id("msg")
        self._pieces: list[str] = []
        self._logprobs: list[ChatTokenLogprob] = []

    def begin(self) -> list[Event]:
        item = OutputMessage(id=self._id, status=IN_PROGRESS, content=[])
        return [
            OutputItemAdded(output_index=self._index, item=item),
            ContentPartAdded(item_id=self._id, output_index=self._index, part=OutputText(text="")),
        ]

    def extend(self, text: str, logprobs: Sequence[ChatTokenLogprob]) -> Event:
        """More text, and the log-probabilities of its tokens where they were asked for."""
        self._pieces.append(text)
        self._logprobs += logprobs
        return OutputTextDelta(
            item_id=self._id, output_index=self._index, delta=text, logprobs=list(logprobs)
        )

    def end(self, status: str) -> list[Event]:
        part = self._part()
        ids: dict[str, Any] = {"item_id": self._id, "output_index": self._index}
        return [
            OutputTextDone(**ids, text=part.text, logprobs=part.logprobs),
            ContentPartDone(**ids, part=part),
            OutputItemDone(output_index=self._index, item=self.item(status)),
        ]

    def item(self, status: str) -> OutputMessage:
        return OutputMessage(id=self._id, status=status, content=[self._part()])

    def _part(self) -> OutputText:
        return OutputText(text="".join(self._pieces), logprobs=self._logprobs)


class OpenReasoning:
    """A thought of the model."""

    def __init__(self, index: int) -> None:
        self._index, self._id = index, new_id("rs")
        self._pieces: list[str] = []

    def begin(self) -> list[Event]:
        item = OutputReasoning(id=self._id, status=IN_PROGRESS, content=[])
        return [
            OutputItemAdded(output_index=self._index, item=item),
            ContentPartAdded(
                item_id=self._id, output_index=self._index, part=ReasoningText(text="")
            ),
        ]

    def extend(self, text: str) -> Event:
        """More of the thought."""
        self._pieces.append(text)
        return ReasoningTextDelta(item_id=self._id, output_index=self._index, delta=text)

    def end(self, status: str) -> list[Event]:
        part = ReasoningText(text="".join(self._pieces))
        ids: dict[str, Any] = {"item_id": self._id, "output_index": self._index}
        return [
            ReasoningTextDone(**ids, text=part.text),
            ContentPartDone(**ids, part=part),
            OutputItemDone(output_index=self._index, item=self.item(status)),
        ]

    def item(self, status: str) -> OutputReasoning:
        part = ReasoningText(text="".join(self._pieces))
        return OutputReasoning(id=self._id, status=status, content=[part])


class OpenCall:
    """A function call."""

    def __init__(self, index: int, name: str, namespace: str | UnsetType = UNSET) -> None:
        self._index, self._id, self._call_id = index, new_id("fc"), new_id("call")
        self._name, self._namespace = name, namespace
        self._pieces: list[str] = []

    def begin(self) -> list[Event]:
        return [OutputItemAdded(output_index=self._index, item=self.item(IN_PROGRESS))]

    def extend(self, text: str) -> Event:
        """More of the arguments' JSON."""
        self._pieces.append(text)
        return CallArgumentsDelta(item_id=self._id, output_index=self._index, delta=text)

    def end(self, status: str) -> list[Event]:
        item = self.item(status)
        return [
            CallArgumentsDone(
                item_id=self._id,
                output_index=self._index,
                name=self._name,
                arguments=item.arguments,
            ),
            OutputItemDone(output_index=self._index, item=item),
        ]

    def item(self, status: str) -> OutputCall:
        return OutputCall(
            id=self._id,
            status=status,
            call_id=self._call_id,
            name=self._name,
            namespace=self._namespace,
            arguments="".join(self._pieces),
        )


OpenItem = OpenMessage | OpenReasoning | OpenCall
