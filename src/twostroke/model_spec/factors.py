"""What some families multiply with, inside a layer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TemperatureSpec:
    """Queries that grow with their position (arXiv:2501.19399, as in Llama 4).

    At position p they are multiplied with ``log(1 + floor((p + 1) / every)) * scale + 1``.
    """

    every: int
    scale: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Multipliers:
    """What Falcon-H1 multiplies within a layer (arXiv:2507.22448, section 3.2).

    Attributes:
        state_parts: Factors of a recurrent part's gate, values, what is written, what is read, and
            steps.
        gate: Factor of an MLP's gate.
    """

    attention_input: float
    attention_output: float
    state_input: float
    state_parts: tuple[float, ...]
    state_output: float
    gate: float
    mlp_output: float
