"""How fast the machine was at each moment, so that both sides of a comparison have it alike.

Other programs make steps long. Where a recorded step took twice what the fit says, the machine did
half its work in that time, whichever requests it worked for. So a replay runs in seconds of work,
and its times are mapped back: a pause of the machine is a pause on both sides, at its time.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from twostroke.questions.replay import RecordedStep
from twostroke.simulator.cost.estimate import CostModel
from twostroke.simulator.replay.fitted_cost import shape_of


class MachineSpeed:
    """Maps times of the recording to seconds of work, and back.

    Between steps, and before and after them all, the machine has its mean speed.

    Args:
        steps: In any order; those that overlap are cut.
    """

    def __init__(self, steps: Sequence[RecordedStep], cost: CostModel) -> None:
        times, works = [0.0], [0.0]
        ordered = sorted((step for step in steps if step.seconds > 0), key=lambda step: step.time)
        estimates = [cost.step(shape_of(step)).seconds for step in ordered]
        self.mean = sum(estimates) / max(1e-12, sum(step.seconds for step in ordered))
        if ordered:
            times[0] = ordered[0].time
        for step, estimate in zip(ordered, estimates, strict=True):
            begin, end = max(step.time, times[-1]), step.time + step.seconds
            if end <= begin:
                continue
            if begin > times[-1]:
                works.append(works[-1] + self.mean * (begin - times[-1]))
                times.append(begin)
            works.append(works[-1] + estimate * (end - begin) / step.seconds)
            times.append(end)
        self._times, self._works = np.array(times), np.array(works)

    def work_at(self, time: float) -> float:
        """Seconds of work from the first step until a time; negative before it."""
        if time <= self._times[0]:
            return self.mean * (time - float(self._times[0]))
        if time >= self._times[-1]:
            return float(self._works[-1]) + self.mean * (time - float(self._times[-1]))
        return float(np.interp(time, self._times, self._works))

    def time_at(self, work: float) -> float:
        """The inverse of ``work_at``."""
        if work <= self._works[0]:
            return float(self._times[0]) + work / self.mean
        if work >= self._works[-1]:
            return float(self._times[-1]) + (work - float(self._works[-1])) / self.mean
        return float(np.interp(work, self._works, self._times))
