"""Targets on the command line."""

from __future__ import annotations

import pytest

from twostroke.core.errors import ConfigError
from twostroke.simulator.reports.options import OutputOptions


def test_targets() -> None:
    assert OutputOptions(slo="ttft=0.5, tpot=0.05").targets() == {"ttft": 0.5, "tpot": 0.05}
    for text in ("ttft", "ttft=0", "itl=1", "ttft=x"):
        with pytest.raises(ConfigError, match="--slo"):
            OutputOptions(slo=text)


@pytest.mark.parametrize("slo", ["ttft=500", "tpot=0.05,ttft=500", "tpot=40", "e2el=5e3"])
def test_a_target_in_milliseconds_is_asked_back(slo: str) -> None:
    with pytest.raises(ConfigError, match="seconds") as caught:
        OutputOptions(slo=slo)
    assert caught.value.hint is not None and "if milliseconds were meant" in caught.value.hint
    assert OutputOptions(slo="e2el=500,ttft=59").targets() == {"e2el": 500, "ttft": 59}
