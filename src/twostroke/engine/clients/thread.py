"""The engine on a thread of its own, and its outputs as asyncio streams."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading

from twostroke.engine.clients.facts import EngineFacts
from twostroke.engine.clients.kept_records import KeptRecords
from twostroke.engine.clients.link import Receiver
from twostroke.engine.clients.message_client import MessageClient
from twostroke.engine.llm_engine import LLMEngine
from twostroke.engine.message_loop import MessageLoop
from twostroke.engine.messages import Close, Drain, EngineMessage, EngineReply, StepReport

STALL_SECONDS = 60.0


class ThreadLink:
    """Implements ``EngineLink``: an engine that a thread of this process runs.

    Messages go through an inbox that is emptied between steps.

    Args:
        engine: Not to be used by anyone else from here on.
    """

    def __init__(self, engine: LLMEngine) -> None:
        self._inbox: queue.SimpleQueue[EngineMessage | Drain] = queue.SimpleQueue()
        self._messages = MessageLoop(engine, self._inbox, self._receive)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._receiver: Receiver
        self._thread = threading.Thread(
            target=self._messages.run, name="twostroke-engine", daemon=True
        )

    def start(self, receiver: Receiver) -> None:
        """Run the engine; its replies go to ``receiver``."""
        self._receiver = receiver
        self._receive(self._messages.report(with_records=True))
        self._thread.start()

    def send(self, message: EngineMessage) -> None:
        self._inbox.put(message)

    def use_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def why_ended(self) -> str | None:
        return None if self._thread.is_alive() else "the engine's thread has ended"

    def close(self) -> None:
        self.send(Close())
        self._thread.join()

    def _receive(self, reply: EngineReply) -> None:
        """Pass a reply on: to the event loop's thread what concerns its streams."""
        self._receiver.keep(reply)
        if isinstance(reply, StepReport) and not reply.outputs:
            return
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # that loop is closed
                self._loop.call_soon_threadsafe(self._receiver.carry_out, reply)


class AsyncEngine(MessageClient):
    """Implements ``EngineClient`` in this process.

    Args:
        engine: Not to be used by anyone else from here on.
        stall_seconds, max_queued_requests: See ``MessageClient``.
    """

    def __init__(
        self,
        engine: LLMEngine,
        *,
        stall_seconds: float = STALL_SECONDS,
        max_queued_requests: int | None = None,
    ) -> None:
        facts, link = EngineFacts.of(engine), ThreadLink(engine)
        super().__init__(
            engine.config,
            facts,
            link,
            clock=engine.clock,
            tokenizer=engine.tokenizer,
            grammars=engine.grammars,
            adapters=engine.adapters,
            records=KeptRecords(
                engine.config.observability.step_events,
                facts.labels,
                publishes_kv=engine.cache.events is not None,
            ),
            stall_seconds=stall_seconds,
            max_queued_requests=max_queued_requests,
        )
        link.start(self)
