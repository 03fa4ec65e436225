"""One replica of a pool: where its engines come from, and what has become of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from twostroke.core.config import EngineConfig
from twostroke.engine.fleet.pool_plan import PoolPlan
from twostroke.engine.fleet.readings import EngineReader
from twostroke.engine.process import process_link
from twostroke.engine.process.engine_process import EngineProcess
from twostroke.engine.process.engine_source import StartedEngine
from twostroke.engine.process.handshake import StartEngine
from twostroke.engine.process.process_link import start_engine


class SupervisedSource:
    """Implements ``EngineSource``: processes of this machine, started again for ever.

    Args:
        settings: How each engine is to be.

    Attributes:
        num_starts: How many have been ready.
        where: The process of the last of them.
    """

    def __init__(self, settings: StartEngine) -> None:
        self.settings = settings
        self.num_starts, self.where = 0, ""

    @property
    def config(self) -> EngineConfig:
        return self.settings.config

    @property
    def pauses(self) -> Sequence[float]:
        return process_link.PAUSES

    @property
    def gives_up(self) -> bool:
        return False

    @property
    def again(self) -> str:
        return "it is started again"

    def start(self) -> StartedEngine:
        started = self._start()
        self.num_starts, self.where = self.num_starts + 1, started.link.name
        return started

    def _start(self) -> StartedEngine:
        return start_engine(self.settings)


SourceMaker = Callable[[StartEngine, PoolPlan], SupervisedSource]


def local_source(settings: StartEngine, plan: PoolPlan) -> SupervisedSource:
    """Where replicas of this machine come from."""
    return SupervisedSource(settings)


@dataclass(slots=True)
class PoolMember:
    """A replica that is ready, or was.

    Attributes:
        index: Its index among the engines that requests may go to.
        number: Its name in metrics and on disk; one that comes later may have it again.
        edition: Which plan it was started by: that of this number.
        leaving_since: Since when it gets no more requests; ``None``: it gets some.
        num_wakes: Starts that followed a sleep, and no failure.
        slept: Whether it was asleep when it was looked at last.
    """

    index: int
    number: int
    edition: int
    source: SupervisedSource
    engine: EngineProcess
    reader: EngineReader = field(init=False)
    leaving_since: float | None = None
    num_wakes: int = 0
    slept: bool = False

    def __post_init__(self) -> None:
        self.reader = EngineReader(self.engine)

    @property
    def stays(self) -> bool:
        return self.leaving_since is None

    def look(self) -> None:
        """Note what it does just now."""
        self.reader.look()
        self.num_wakes += self.slept and not self.asleep
        self.slept = self.asleep

    @property
    def asleep(self) -> bool:
        return self.engine.idleness.asleep

    @property
    def num_restarts(self) -> int:
        """How often its engine has ended by itself, and another has followed."""
        return max(0, self.source.num_starts - 1 - self.num_wakes)

    @property
    def state(self) -> str:
        """``ready``, ``leaving``, ``asleep`` or ``down``."""
        if self.leaving_since is not None:
            return "leaving"
        if self.asleep:
            return "asleep"
        return "ready" if self.engine.takes_requests else "down"

    def describe(self) -> str:
        """What it does, and where, for a line of the log."""
        if self.state == "asleep":
            return self.state
        restarts = f", restart {self.num_restarts}" if self.num_restarts else ""
        if self.state == "down":
            return "is down"
        return f"{self.state} ({self.source.where}{restarts})"
