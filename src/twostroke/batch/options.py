"""Options of `twostroke batch`; the command line derives its flags from these fields."""

from __future__ import annotations

from dataclasses import dataclass

from twostroke.core.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOptions:
    """How a batch runs, and what becomes of an output file that is there already."""

    max_concurrency: int = 128
    """Most requests under way at once."""
    retry_failed: bool = False
    """Send again what failed in an earlier run; its lines in the output file are replaced."""
    overwrite: bool = False
    """Start anew, whatever the output file holds; by default its answers are kept and the rest is
    done.
    """
    served_model_name: tuple[str, ...] = ()
    """Name that requests may give the model (repeat the flag for more); by default --model as
    given.
    """

    def __post_init__(self) -> None:
        if self.max_concurrency < 1:
            hint = "give --max-concurrency a number of requests, or leave it out"
            raise ConfigError(
                f"--max-concurrency must be at least 1, got {self.max_concurrency}", hint=hint
            )
