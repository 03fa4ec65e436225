"""What became of a checkpoint that was rounded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Quantised:
    """What was written.

    Attributes:
        errors: By module that was rounded, the root of the mean squared difference as a
            share of the weights' own.
        kept: Linear layers of the model that were not, by name.
        bytes_before, bytes_after: Sizes of all tensors together.
    """

    errors: Mapping[str, float]
    kept: list[str]
    bytes_before: int
    bytes_after: int
