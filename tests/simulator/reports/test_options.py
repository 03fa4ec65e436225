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
