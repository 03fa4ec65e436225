"""What crosses once, before anything else: how the engine is to be, and what it is."""

from __future__ import annotations

import msgspec

from twostroke.core.config import EngineConfig
from twostroke.core.errors import ConfigError, ErrorMessage, ModelLoadError, TwostrokeError
from twostroke.engine.clients.facts import EngineFacts

_KINDS = {kind.__name__: kind for kind in (ConfigError, ModelLoadError)}


class StartEngine(msgspec.Struct, frozen=True, tag=True):
    """The front end's wishes.

    Attributes:
        version: The front end's; an engine of another one refuses.
        served_model_name: The model's name in metrics; by default as in ``config``.
        rank: Which of the model's engines it is.
        num_threads: With how many threads it computes; 0: as the environment says, or all cores.
        log_level: What ``--log-level`` takes.
        log_json: Whether lines of the log are JSON.
    """

    version: str
    config: EngineConfig
    served_model_name: str | None = None
    rank: int = 0
    num_threads: int = 0
    log_level: str = "info"
    log_json: bool = False


class EngineStarted(msgspec.Struct, frozen=True, tag=True):
    """The engine is ready."""

    facts: EngineFacts


class EngineRefused(msgspec.Struct, frozen=True, tag=True):
    """It cannot be started, or is not for this front end."""

    error: ErrorMessage

    def to_exception(self) -> TwostrokeError:
        """An exception of the kind that was sent."""
        kind = _KINDS.get(self.error.kind)
        if kind is None:
            return self.error.to_exception()
        return kind(self.error.message, hint=self.error.hint)


StartAnswer = EngineStarted | EngineRefused
