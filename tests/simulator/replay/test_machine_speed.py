"""Protects: times and work map to each other, and a pause of the machine is one on both sides."""

from __future__ import annotations

import pytest

from tests.simulator.replay.test_fitted_cost import recorded
from twostroke.questions.replay import RecordedStep, ReplayedRequest, ReplayJob, Settings
from twostroke.simulator.replay.fitted_cost import fit_cost
from twostroke.simulator.replay.machine_speed import MachineSpeed
from twostroke.simulator.replay.replay import replay


def test_the_mapping_is_its_own_inverse_everywhere() -> None:
    steps = recorded(200, stops=0.05)
    speed = MachineSpeed(steps, fit_cost(steps)[0])
    times = [90.0 + 0.05 * n for n in range(400)]
    works = [speed.work_at(time) for time in times]
    assert works == sorted(works)
    assert [speed.time_at(work) for work in works] == pytest.approx(times, abs=1e-6)


def test_a_pause_of_the_machine_is_at_its_time_on_both_sides() -> None:
    steps, time = [], 0.0
    for number in range(100):
        seconds = 2.0 if number == 50 else 0.01
        steps.append(RecordedStep(1, 100 + number, [], 1, seconds, time))
        time += seconds
    requests = [ReplayedRequest("one", 0.0, 16, 60), ReplayedRequest("late", 1.5, 16, 20)]
    answer = replay(ReplayJob(requests, steps, Settings(), Settings("static"), 100, 16))
    for side in (answer.recorded, answer.other):
        assert side.longest_gap > 0.9  # its steps may end within the pause, and share it
        assert side.finish[0] == pytest.approx(2.6, abs=0.2)
    assert answer.fit.speed == pytest.approx(1.0 / 2.99, rel=0.1)
