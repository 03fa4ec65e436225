"""Protects: a start of the server is timed to its first token, and one that fails shows why."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import startup
from benchmarks.server import DEADLINE, ServerFailedError
from tests.benchmarks.tiny import tiny_checkpoint


def test_a_server_is_started_timed_and_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_checkpoint(tmp_path / "model", monkeypatch)
    start = startup.start_once(str(model), tmp_path / "log")
    assert 0 < start.healthy < start.first_token < DEADLINE


def test_a_server_that_ends_is_an_error_with_its_log(tmp_path: Path) -> None:
    with pytest.raises(ServerFailedError, match="no folder"):
        startup.start_once(str(tmp_path / "not there"), tmp_path / "log")


def test_medians_are_judged_against_the_target() -> None:
    starts = [startup.Start(1.0, 3.0), startup.Start(1.5, 3.5), startup.Start(2.0, 9.0)]
    assert "median 3.50 s, min 3.00, max 9.00; target 4 s: met" in startup.describe("pilot", starts)
    assert "MISSED" in startup.describe("pilot", starts[2:])
