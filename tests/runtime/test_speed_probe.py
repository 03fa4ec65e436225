"""The probe of the machine's speed: plausible figures, and as long as it was asked for."""

from __future__ import annotations

import time

from twostroke.runtime.speed_probe import SpeedProbe
from twostroke.startup import make_speed_probe


def test_a_probe_finds_rates_that_a_machine_can_have() -> None:
    flops, bandwidth = make_speed_probe("cpu")()
    assert 1e8 < flops < 1e16  # an emulated core, and more than any device has
    assert 1e7 < bandwidth < 1e14


def test_a_look_at_the_speed_is_short_whatever_the_processor_can_multiply() -> None:
    """Emulated bfloat16 made it take twenty seconds with AVX2."""
    probe = SpeedProbe()
    began = time.perf_counter()
    probe()
    assert time.perf_counter() - began < 5


def test_keeping_busy_takes_as_long_as_asked() -> None:
    probe = SpeedProbe()
    began = time.perf_counter()
    probe.keep_busy(0.05)
    assert 0.05 <= time.perf_counter() - began < 5
    probe.keep_busy(0.0)
