"""Options of `twostroke batch`; the command line derives its flags from these fields."""

from __future__ import annotations

from dataclasses import dataclass

from twostroke.core.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOptions:
    """How a batch runs, and what happens to an output file that exists already."""

    max_concurrency: int = 128
    """Most requests under way at once."""
    request_timeout: float = 3600.0
    """Seconds that the server of --url may take for one answer."""
    retry_failed: bool = False
    """Send again what failed in an earlier run; its lines in the output file are replaced."""
    overwrite: bool = False
    """Empty the output file first; by default its answers are kept and only the rest is sent."""
    served_model_name: tuple[str, ...] = ()
    """Name that requests may give the model (repeat the flag for more); default: --model."""

    def __post_init__(self) -> None:
        if self.max_concurrency < 1:
            hint = "give --max-concurrency a number of requests, or leave it out"
            raise ConfigError(
                f"--max-concurrency must be at least 1, got {self.max_concurrency}", hint=hint
            )
        if not 0 < self.request_timeout < 1e6:
            hint = "give --request-timeout a number of seconds, or leave it out"
            raise ConfigError(
                f"--request-timeout must be more than 0, got {self.request_timeout}", hint=hint
            )
