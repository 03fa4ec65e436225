"""Protects: averages over time are those of the steps, whatever part and width is asked for."""

from __future__ import annotations

import pytest

from tests.inspector.recorded import events
from twostroke.inspector.fleet.occupancy import Occupancy


def recorded_occupancy() -> Occupancy:
    occupancy = Occupancy()
    for event in events():
        occupancy.add(event)
    return occupancy


@pytest.mark.parametrize(("share", "columns"), [((0.0, 1.0), 1), ((0.2, 0.7), 7), ((0.5, 0.51), 3)])
def test_a_column_is_the_average_over_its_time(share: tuple[float, float], columns: int) -> None:
    steps = events()
    first, last = steps[0].time, steps[-1].time + steps[-1].duration
    begin, end = (first + part * (last - first) for part in share)
    levels = recorded_occupancy().levels(begin, end, columns)
    width = (end - begin) / columns
    for column in range(columns):
        low, high = begin + column * width, begin + (column + 1) * width
        running = waiting = held = 0.0
        for number, step in enumerate(steps):
            until = steps[number + 1].time if number + 1 < len(steps) else last
            overlap = max(0.0, min(high, until) - max(low, step.time))
            running += overlap * step.num_running
            waiting += overlap * step.num_waiting
            held += overlap * (1 - step.free_blocks / step.total_blocks)
        assert levels.running[column] == pytest.approx(running / width, rel=1e-6, abs=1e-9)
        assert levels.waiting[column] == pytest.approx(waiting / width, rel=1e-6, abs=1e-9)
        assert levels.kv[column] == pytest.approx(held / width, rel=1e-6, abs=1e-9)
        step = steps[levels.row[column]]
        assert step.time <= (low + high) / 2 or levels.row[column] == 0


def test_before_the_first_and_after_the_last_step_nothing_runs() -> None:
    steps = events()
    first, last = steps[0].time, steps[-1].time + steps[-1].duration
    assert recorded_occupancy().levels(first - 2, first - 1, 4).running.tolist() == [0.0] * 4
    assert recorded_occupancy().levels(last + 1, last + 2, 4).running.tolist() == [0.0] * 4


def test_an_engine_without_a_step_is_empty() -> None:
    levels = Occupancy().levels(0.0, 1.0, 3)
    assert levels.running.tolist() == levels.kv.tolist() == [0.0, 0.0, 0.0]
