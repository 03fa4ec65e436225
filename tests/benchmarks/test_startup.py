from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import make_checkpoint, startup
from benchmarks.server import DEADLINE, ServerFailedError
from tests.benchmarks.test_claims import TINY


def test_a_server_is_started_timed_and_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(make_checkpoint.SIZES, "10m", {**make_checkpoint.SIZES["10m"], **TINY})
    make_checkpoint.main("10m", str(tmp_path / "model"))
    start = startup.start_once(str(tmp_path / "model"), tmp_path / "log")
    assert 0 < start.healthy < start.first_token < DEADLINE


def test_a_server_that_ends_is_an_error_with_its_log(tmp_path: Path) -> None:
    with pytest.raises(ServerFailedError, match="no folder"):
        startup.start_once(str(tmp_path / "not there"), tmp_path / "log")


def test_medians_are_judged_against_the_target() -> None:
    starts = [startup.Start(1.0, 3.0), startup.Start(1.5, 3.5), startup.Start(2.0, 9.0)]
    assert "median 3.50 s, min 3.00, max 9.00; target 4 s: met" in startup.describe("pilot", starts)
    assert "MISSED" in startup.describe("pilot", starts[2:])
