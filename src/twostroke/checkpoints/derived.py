"""Tensors that no file holds as a model needs them: made of others while they load."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from twostroke.checkpoints.checkpoint import StoredTensor

Floats = NDArray[np.float32]
Make = Callable[[Sequence[Floats]], Floats]


@dataclass(frozen=True, slots=True, kw_only=True)
class DerivedTensor(StoredTensor):
    """A tensor that ``make`` computes; its own place is that of the first source.

    Attributes:
        sources: What it is made of.
        make: Takes them decoded, each in its own shape, and returns one of ``shape``.
        nbytes: Bytes of all sources together.
    """

    sources: tuple[StoredTensor, ...]
    make: Make


def derive(sources: Sequence[StoredTensor], shape: tuple[int, ...], make: Make) -> DerivedTensor:
    """A tensor of ``shape`` made of ``sources``, of which there is one at least."""
    first, nbytes = sources[0], sum(source.nbytes for source in sources)
    return DerivedTensor(
        first.format,
        shape,
        first.path,
        first.offset,
        nbytes,
        sources=tuple(sources),
        make=make,
    )
