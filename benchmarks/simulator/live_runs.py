"""Runs of a workload on the live engine at the speed of the calibration.

The machine's speed changes for seconds at a time by itself
(``docs/lab/benchmarks-and-machines.md``). A probe looks before, after and every half second within
a run; a run at another speed than the calibration's is made again. The choice between runs sees the
probe and the CPU time of other programs, never what was measured. If none is undisturbed, all
count. Where no speed held for the calibration, which is an average then, all runs count that are as
fast on average. Virtual cores that sleep between two requests are what changes speed most, so they
are kept busy, as they are in a calibration.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from benchmarks.environment import OtherPrograms
from benchmarks.simulator.live_player import LivePlayer
from twostroke.engine.llm_engine import LLMEngine
from twostroke.simulator.calibration.machine_speed import SAME, Speed, usual
from twostroke.simulator.fleet.result import RequestResult
from twostroke.simulator.workloads.base import Workload

if TYPE_CHECKING:
    from twostroke.runtime.speed_probe import SpeedProbe

# Share of the CPU time that other programs may take, and runs of which one has to be undisturbed.
QUIET, ATTEMPTS = 0.03, 3
# Looks before and after a run, and the seconds between two of them.
LOOKS, BETWEEN_LOOKS = 5, 0.05


@dataclass(frozen=True, slots=True)
class LiveRun:
    """One run and the state of the machine meanwhile.

    Attributes:
        steps: Numbers of its first step and of the one after its last.
        others_share: Share of the CPU time that other programs took.
        slower: Seconds that the same arithmetic took on average, over those of the calibration's
            usual speed.
        memory: The same for a copy.
        looks: Every ``slower`` of the run, in order.
        attempts: How many runs were made until one was undisturbed, or there were enough.
    """

    results: list[RequestResult]
    steps: tuple[int, int]
    others_share: float
    slower: float
    memory: float
    looks: Sequence[float]
    attempts: int = 1

    @property
    def apart(self) -> float:
        """How far the machine's speed was from the calibration's, 1: as far as is allowed."""
        return (max(max(ratio, 1 / ratio) for ratio in (self.slower, self.memory)) - 1) / SAME

    @property
    def disturbed(self) -> float:
        """How far the machine was from what is allowed, 1: all of it."""
        return max(self.apart, self.others_share / QUIET)

    def state(self) -> dict[str, Any]:
        """What a report says of it."""
        return {
            "disturbed": round(self.disturbed, 2),
            "others": round(self.others_share, 3),
            "slower": round(self.slower, 3),
            "memory": round(self.memory, 3),
            "attempts": self.attempts,
            "looks": [round(look, 2) for look in self.looks],
        }


def watched_run(
    engine: LLMEngine,
    workload: Workload,
    seed: str,
    probe: SpeedProbe,
    calibrated: Speed,
    *,
    let_sleep: bool = False,
) -> LiveRun:
    """A run, and how the machine's speed during it compares with the ``calibrated`` one.

    Args:
        let_sleep: Let the machine sleep while there is no request. By default it is kept busy, as
            in a calibration.
    """
    first = _next_step(engine)
    before, other_programs = _speed(probe), OtherPrograms()
    player = LivePlayer(
        engine, workload, seed, probe.flops, time.sleep if let_sleep else probe.keep_busy
    )
    results = player.run()
    others_share, after = other_programs.share() or 0.0, _speed(probe)
    looks = [calibrated.flops / flops for flops in (before.flops, *player.seen, after.flops)]
    return LiveRun(
        results,
        (first, _next_step(engine)),
        others_share=others_share,
        slower=sum(looks) / len(looks),
        memory=(calibrated.bandwidth / before.bandwidth + calibrated.bandwidth / after.bandwidth)
        / 2,
        looks=looks,
    )


def counted_runs(run: Callable[[int], LiveRun], *, held: bool, wanted: int = 1) -> list[LiveRun]:
    """The first ``wanted`` undisturbed runs of ``ATTEMPTS`` for each; or else all of them.

    Args:
        held: The calibration is of one speed of the machine. If not, it is of an average, in which
            others have their part: all attempts are made, and those count that were as fast on
            average.
    """
    made: list[LiveRun] = []
    fit: list[LiveRun] = []
    while len(made) < wanted * ATTEMPTS and not (held and len(fit) == wanted):
        made.append(run(len(made)))
        if (made[-1].disturbed if held else made[-1].apart) <= 1:
            fit.append(made[-1])
    return [replace(run_, attempts=len(made)) for run_ in fit or made]


def _speed(probe: SpeedProbe) -> Speed:
    """The median of several, since neighbours use the memory in bursts."""
    speeds = []
    for _ in range(LOOKS):
        speeds.append(Speed(*probe()))
        probe.keep_busy(BETWEEN_LOOKS)
    return usual(speeds)


def _next_step(engine: LLMEngine) -> int:
    events = engine.recorder.events()
    return events[-1].step + 1 if events else 0
