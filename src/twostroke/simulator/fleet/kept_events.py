"""All step events of a run, kept in memory."""

from __future__ import annotations

from collections.abc import Sequence

from twostroke.core.output import RequestOutput
from twostroke.core.request import Request
from twostroke.observability.events import StepEvent
from twostroke.observability.observer import ObservedStep


class KeptEvents:
    """An observer that keeps the events of one replica's steps."""

    def __init__(self) -> None:
        self.events: list[StepEvent] = []

    def on_add(self, requests: Sequence[Request]) -> None:
        """Requests are told by their first step."""

    def on_step(self, step: ObservedStep) -> None:
        self.events.append(step.event)

    def on_end(self, requests: Sequence[Request], outputs: Sequence[RequestOutput]) -> None:
        """The next step's event names them."""

    def close(self) -> None:
        """The events stay readable."""
