"""Five workloads for the live engine, each as much as suits a model on a machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from twostroke.simulator.workloads.options import SimulatedWorkloadOptions as Options

WARM_UP = Options(workload="random", num_requests=16, input_len=100, output_len=20)
# Chats as they come in the first workload, but so many at once that more would hardly end sooner.
# The last have fewer beside them: what comes out is a little less than the most that is possible.
SATURATING = Options(
    workload="sharegpt-like", num_requests=256, arrivals="closed", concurrency=64, seed=1
)
# The share of a model's most chats a second that arrive, and for about how many seconds. In 20 s of
# a slow machine a mean hangs on few requests: with 16 long prompts, on whether two happen to meet.
LOAD, SECONDS = 1 / 3, 60.0
# Requests of the first workload, at the least.
CHATS = 14


@dataclass(frozen=True, slots=True)
class Pace:
    """What suits a model here: chats a second, and a multiple of the least requests."""

    rate: float
    times: int

    @classmethod
    def suited(cls, chats_per_second: float) -> Pace:
        """For a model that can do at most so many chats a second."""
        # Rounded: it is kept with the measurement, and the simulator must play the very same
        # workload later.
        rate = float(f"{chats_per_second * LOAD:.2g}")
        return cls(rate, max(1, round(rate * SECONDS / CHATS)))


def workloads(pace: Pace) -> Mapping[str, Options]:
    """Lengths, arrivals and sharing that no scene of the calibration has."""

    def make(requests: int, rate: float | None = None, **options: Any) -> Options:
        paced_rate = None if rate is None else rate * pace.rate
        return Options(num_requests=requests * pace.times, rate=paced_rate, seed=1, **options)

    lengths: dict[str, Any] = {"workload": "random", "range_ratio": 0.5}
    few = 8 if pace.times == 1 else 16
    return {
        "chats, Poisson": make(CHATS, 1.0, workload="sharegpt-like"),
        "closed loop": make(
            32, arrivals="closed", concurrency=few, input_len=220, output_len=60, **lengths
        ),
        "long prompts": make(
            8, 0.5, arrivals="gamma", burstiness=0.5, input_len=1400, output_len=24, **lengths
        ),
        "sessions": make(
            24,
            1.5,
            workload="sessions",
            input_len=60,
            output_len=40,
            prefix_len=300,
            range_ratio=0.5,
            think_time=0.5,
        ),
        "bursts": make(
            48, 3.0, arrivals="burst", burst_size=2 * few, input_len=70, output_len=40, **lengths
        ),
    }
