"""What an engine says of itself at its start, for the front end that is to be its client."""

from __future__ import annotations

import msgspec

from twostroke.core.config import SchedulerConfig
from twostroke.engine.adapters.orders import KnownAdapter
from twostroke.engine.executor import ExecutorInfo
from twostroke.engine.llm_engine import LLMEngine


class EngineFacts(msgspec.Struct, frozen=True):
    """What follows from the model and the machine; the rest is in the configuration.

    Attributes:
        labels: Those of the engine's metrics.
        watched_targets: Each as ``--target`` takes it.
    """

    info: ExecutorInfo
    scheduler_config: SchedulerConfig
    adapters: list[KnownAdapter]
    labels: dict[str, str]
    watched_targets: list[str]

    @classmethod
    def of(cls, engine: LLMEngine) -> EngineFacts:
        """Read them off an engine in this process."""
        return cls(
            engine.info,
            engine.scheduler.config,
            list(engine.adapters.known.values()),
            engine.metrics.labels,
            [] if engine.targets is None else engine.targets.watched,
        )

    @property
    def model_name(self) -> str:
        """The model's name in metrics and targets."""
        return self.labels["model_name"]
