"""Least absolute deviations by a seeded pattern search: repeatable, and without scipy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import exp
from random import Random

# Name -> (start, lowest, highest, scale of a move). A positive scale moves in logarithms, a
# negative one adds.
Space = Mapping[str, tuple[float, float, float, float]]


def search(
    loss: Callable[[dict[str, float]], float], space: Space, rounds: int, seed: int = 0
) -> dict[str, float]:
    """The values of least loss in ``rounds`` tries. Moves shrink when they stop helping."""
    random = Random(seed)
    best = {name: start for name, (start, *_) in space.items()}
    least = loss(best)
    names = list(space)
    width = 1.0
    failures = 0
    for _ in range(rounds):
        tried = dict(best)
        for name in random.sample(names, min(len(names), random.choice((1, 1, 2, 3)))):
            _, low, high, scale = space[name]
            move = random.gauss(0.0, width)
            value = tried[name] * exp(scale * move) if scale > 0 else tried[name] - scale * move
            tried[name] = min(max(value, low), high)
        tried_loss = loss(tried)
        if tried_loss < least:
            best, least, failures = tried, tried_loss, 0
        else:
            failures += 1
            if failures % 25 == 0:
                width = max(0.1, width * 0.7)
    return best
