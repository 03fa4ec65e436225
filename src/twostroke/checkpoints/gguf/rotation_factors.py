"""Scaled rotation of which GGUF files keep what each frequency is divided by: Llama 3, Phi-3."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twostroke.checkpoints.checkpoint import StoredTensor
from twostroke.core.errors import ModelLoadError

ROPE_FACTORS = "rope_freqs.weight"
LONG_FACTORS, SHORT_FACTORS = "rope_factors_long.weight", "rope_factors_short.weight"
LOW, HIGH = 1.0, 4.0  # all published models
PUBLISHED_LENGTH = 8192


def read_factors(tensor: StoredTensor, name: str, rotated: int) -> list[float]:
    """One for each frequency. Raises ModelLoadError where there are more or fewer, or no floats."""
    if tensor.format != "F32" or tensor.shape != (rotated // 2,):
        raise ModelLoadError(
            f"{tensor.path}: {name} is {tensor.format} of {tensor.shape}, expected F32 of"
            f" {(rotated // 2,)}",
            hint="this variant of the architecture is not supported",
        )
    with tensor.path.open("rb") as file:
        file.seek(tensor.offset)
        return [float(factor) for factor in np.frombuffer(file.read(tensor.nbytes), "<f4")]


def read_llama3_scaling(tensor: StoredTensor, theta: float, rotated: int) -> dict[str, Any]:
    """The fields of ``rope_scaling`` that give the factors in ``tensor``.

    Args:
        rotated: Elements of a head that are rotated.

    Raises:
        ModelLoadError: No such fields do.
    """
    factors = np.array(read_factors(tensor, ROPE_FACTORS, rotated))
    wavelengths = 2 * math.pi * theta ** (np.arange(0, rotated, 2) / rotated)
    factor = float(factors.max())
    between = np.flatnonzero((factors > 1.001) & (factors < 0.999 * factor))
    length, high = PUBLISHED_LENGTH, HIGH
    if len(between):
        middle = between[len(between) // 2]
        share = (1 / factors[middle] - 1 / factor) / (1 - 1 / factor)
        length = round(wavelengths[middle] * (LOW + share * (HIGH - LOW)))
    elif not np.allclose(factors, _factors(wavelengths, factor, length, high), rtol=1e-3):
        high = LOW  # Llama 4: nothing lies between
    if not np.allclose(factors, _factors(wavelengths, factor, length, high), rtol=1e-3):
        raise _refusal(tensor)
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": LOW,
        "high_freq_factor": high,
        "original_max_position_embeddings": length,
    }


def _factors(
    wavelengths: NDArray[np.float64], factor: float, length: int, high: float
) -> NDArray[np.float64]:
    turns = length / wavelengths
    share = np.clip((turns - LOW) / (high - LOW), 0, 1) if high > LOW else turns > LOW
    return 1 / ((1 - share) / factor + share)


def _refusal(tensor: StoredTensor) -> ModelLoadError:
    return ModelLoadError(
        f"{tensor.path}: {ROPE_FACTORS} holds other factors than Llama 3's rule gives",
        hint="this variant of the architecture is not supported",
    )
