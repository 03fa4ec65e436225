"""When requests arrive: lists of times for open loops, and the closed loop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from random import Random

from msgspec.structs import replace

from twostroke.simulator.workloads.base import RequestSpec


def gamma_times(count: int, rate: float, shape: float, random: Random) -> list[float]:
    """Times in seconds from 0 on, with gamma distributed gaps of mean ``1 / rate``.

    Args:
        shape: Shape of the distribution; 1 gives a Poisson process.
    """
    times, now = [], 0.0
    for _ in range(count):
        times.append(now)
        now += random.gammavariate(shape, 1 / (rate * shape))
    return times


def burst_times(count: int, rate: float, size: int) -> list[float]:
    """``size`` requests at once, every ``size / rate`` seconds."""
    return [number // size * (size / rate) for number in range(count)]


def stretch(times: Sequence[float], rate: float) -> list[float]:
    """Shift a pattern to begin at 0, and stretch it to a mean of ``rate`` requests a second."""
    span = times[-1] - times[0]
    if span <= 0:
        return [0.0] * len(times)
    factor = (len(times) - 1) / (rate * span)
    return [(time - times[0]) * factor for time in times]


@dataclass
class ClosedLoop:
    """``concurrency`` clients: each sends a request, waits for the answer, pauses, sends the next.

    Args:
        specs: In order; their arrival times are ignored.
        think_time: Seconds on average, exponentially distributed.
    """

    specs: Sequence[RequestSpec]
    concurrency: int
    think_time: float = 0.0
    seed: int = 0
    _remaining: Iterator[RequestSpec] = field(init=False, repr=False)
    _random: Random = field(init=False, repr=False)

    @property
    def total(self) -> int:
        return len(self.specs)

    @property
    def reactive(self) -> bool:
        return True

    def arrivals(self) -> Iterator[RequestSpec]:
        self._remaining = iter(self.specs)
        self._random = Random(f"{self.seed} thinking")
        return (
            replace(spec, arrival=0.0) for spec in list(islice(self._remaining, self.concurrency))
        )

    def after(self, spec: RequestSpec, now: float) -> Sequence[RequestSpec]:
        following = next(self._remaining, None)
        if following is None:
            return ()
        return (replace(following, arrival=now + draw_pause(self._random, self.think_time)),)


def draw_pause(random: Random, mean: float) -> float:
    """Seconds, exponentially distributed; a mean of 0 draws no random number."""
    return random.expovariate(1 / mean) if mean else 0.0
