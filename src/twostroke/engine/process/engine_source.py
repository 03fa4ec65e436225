"""The seam between a client and where its engines come from, one after another."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from twostroke.core.config import EngineConfig
from twostroke.core.errors import EngineDeadError, ErrorMessage, TwostrokeError
from twostroke.engine.clients.facts import EngineFacts
from twostroke.engine.process.socket_link import SocketLink

logger = logging.getLogger(__name__)


class StartedEngine(NamedTuple):
    """A link to an engine, and what that has said of itself."""

    link: SocketLink
    facts: EngineFacts


class EngineSource(Protocol):
    """A process that is started, or a worker that is connected to."""

    @property
    def config(self) -> EngineConfig:
        """How each engine is configured."""
        ...

    @property
    def pauses(self) -> Sequence[float]:
        """Seconds before one start after another, while no engine gives a token."""
        ...

    @property
    def gives_up(self) -> bool:
        """Whether no start follows the last pause; else that is the pause from there on."""
        ...

    @property
    def again(self) -> str:
        """What follows the end of an engine, for people: ``it is started again``."""
        ...

    def start(self) -> StartedEngine:
        """Wait until an engine is ready.

        Raises:
            TwostrokeError: There is none, and why.
        """
        ...


def start_again(
    source: EngineSource,
    num_starts: int,
    closing: threading.Event,
    tell: Callable[[Exception], None],
    max_starts: int | None = None,
) -> tuple[StartedEngine | None, int]:
    """An engine, and how many starts lie behind it; none, once it is given up or closing.

    Args:
        num_starts: Starts that lie behind already, without a token.
        closing: Set where no engine is wanted any more.
        tell: Called with the reason of each start that fails.
        max_starts: How many there are at most; by default as many as there are pauses, of a source
            that gives up, and any number of another.
    """
    pauses, logged = source.pauses, ""
    if max_starts is None and source.gives_up:
        max_starts = len(pauses)
    for number in itertools.count(num_starts):
        if max_starts is not None and number >= max_starts:
            break
        if closing.wait(pauses[min(number, len(pauses) - 1)]):
            break
        try:
            return source.start(), number + 1
        except TwostrokeError as error:
            if str(error) != logged or source.gives_up:
                logger.error("there is no engine: %s", error)
            logged = str(error)
            tell(error)
        except Exception as error:  # a package that was changed meanwhile, say
            logger.exception("the engine cannot be started")
            tell(error)
    return None, len(pauses)


def unloaded() -> ErrorMessage:
    """What requests are told that were to wake an engine, which cannot be started."""
    message = "the model had been unloaded, and cannot be started again at the moment"
    return ErrorMessage.of(EngineDeadError(message, hint="try again later; see the server's log"))


def closed() -> ErrorMessage:
    """What requests are told that a client leaves behind."""
    return ErrorMessage.of(EngineDeadError("the engine has been closed", hint="try another server"))


def given_up(reason: str) -> ErrorMessage:
    """What requests are told where no engine will come any more."""
    return ErrorMessage.of(EngineDeadError(reason, hint="see the log; restart the server"))


def missing_engine(source: EngineSource, reason: str) -> ErrorMessage:
    """What requests are told while there is no engine, but another may come."""
    hint = f"{source.again}: try again in some seconds"
    return ErrorMessage.of(EngineDeadError(reason, hint=hint))
