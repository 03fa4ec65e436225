"""The seam between a client of messages and wherever its engine runs."""

from __future__ import annotations

import asyncio
from typing import Protocol

from twostroke.engine.messages import EngineMessage, EngineReply


class Receiver(Protocol):
    """Takes what an engine sends."""

    def keep(self, reply: EngineReply) -> None:
        """Note what the engine tells of itself; on any thread, each reply before the next."""

    def carry_out(self, reply: EngineReply) -> None:
        """Give outputs and answers to those who wait; on the event loop's thread, in order."""


class EngineLink(Protocol):
    """Carries messages to one engine, and its replies to a ``Receiver``."""

    def send(self, message: EngineMessage) -> None:
        """Never waits, and loses nothing while the engine lives."""

    def use_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Have replies carried out on this loop from now on; called on its thread."""

    def why_ended(self) -> str | None:
        """One sentence, if nothing that runs takes messages any more."""

    def close(self) -> None:
        """End the engine after its step, and wait until it has ended."""
