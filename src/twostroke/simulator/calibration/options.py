"""Options of a calibration; the command line derives its flags from these fields."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from twostroke.core.flags.declared import Must, at_least, check_fields
from twostroke.model_spec.number_formats import weight_format

# Of each batch; three are usual, and this many take days.
MAX_ROUNDS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationOptions:
    """What is measured, and where the coefficients go."""

    gpu: str = "cpu"
    """The device that the engine runs on: a hardware sheet by name, or one of your own (.toml)."""
    rounds: Annotated[
        int,
        at_least(1, "at least 1"),
        Must(f"at most {MAX_ROUNDS:,}", lambda rounds: rounds <= MAX_ROUNDS),
    ] = 3
    """Runs of every batch; at most twice as many if the machine's speed changes."""
    output: Path = Path("efficiencies.toml")
    """Write the coefficients here."""
    steps: Path | None = None
    """Write every kind of step, measured and estimated, here (CSV)."""

    def __post_init__(self) -> None:
        check_fields(self)

    @staticmethod
    def weight_format(dtype: str, stored: str, quantization: str | None = None) -> str:
        """The engine's weight format: ``--quantization``, ``--dtype`` or the checkpoint's."""
        if quantization is not None:
            return quantization
        return stored if dtype == "auto" else weight_format(dtype).name
