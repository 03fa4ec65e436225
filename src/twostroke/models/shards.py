"""Which part of each of a model's parameters one of several processes takes.

Nothing but shapes decides: the parameters of the whole model and of one process's share have the
same names, and where they differ in a size, that dimension is divided.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from twostroke.core.errors import ConfigError
from twostroke.models.parameters import Parameter


@dataclass(frozen=True, slots=True)
class Shard:
    """What is taken of one stored tensor.

    Attributes:
        dimension: That is divided.
        ranges: (first, end) along it, one after the other.
    """

    dimension: int
    ranges: tuple[tuple[int, int], ...]

    @property
    def slices(self) -> list[tuple[slice, ...]]:
        before = (slice(None),) * self.dimension
        return [(*before, slice(*own)) for own in self.ranges]


NO_SHARDS: Mapping[str, Shard] = {}  # everything whole


def shards_of(
    whole: Sequence[Parameter], own: Sequence[Parameter], rank: int, ranks: int
) -> dict[str, Shard]:
    """Find what a process takes of each stored tensor, by name; others it takes whole.

    Args:
        whole, own: The parameters of the model, and of the share of a process, in the same order.
    """
    shards = {}
    for parameter, share in zip(whole, own, strict=True):
        for (name, full), (_, small) in zip(parameter.parts, share.parts, strict=True):
            if (dimension := _divided(name, full, small)) is not None:
                sections = parameter.sections or (full[dimension],)
                of_share = share.sections or (small[dimension],)
                starts = accumulate(sections, initial=0)
                sizes = zip(starts, sections, of_share)
                shards[name] = Shard(dimension, tuple(_range(*each, rank, ranks) for each in sizes))
    return shards


def added_once(whole: Sequence[Parameter], shards: Mapping[str, Shard]) -> set[str]:
    """The biases that one process adds for all: of products whose inputs are divided."""
    divided = {each.name for each in whole if any(part in shards for part, _ in each.parts)}
    biases = set()
    for parameter in whole:
        stem, is_bias = parameter.name.removesuffix("bias"), parameter.name.endswith("bias")
        weights = (f"{stem}weight", stem.removesuffix("_"), f"{stem}blocks")
        if is_bias and parameter.name not in divided and any(own in divided for own in weights):
            biases.add(parameter.name)
    return biases


def _divided(name: str, full: tuple[int, ...], small: tuple[int, ...]) -> int | None:
    differing = [d for d, (one, other) in enumerate(zip(full, small)) if one != other]
    if len(differing) > 1 or len(full) != len(small):
        raise ConfigError(
            f"--tensor-parallel-size divides {name} in a way that its blocks do not allow",
            hint="choose a smaller one",
        )
    return differing[0] if differing else None


def _range(start: int, full: int, small: int, rank: int, ranks: int) -> tuple[int, int]:
    """Where a share of ``small`` lies in a section; shares may be there several times."""
    first = start + rank * full // ranks // small * small
    return first, first + small
