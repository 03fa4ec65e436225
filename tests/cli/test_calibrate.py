"""``twostroke calibrate``: measures the engine and writes what ``twostroke simulate`` takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from twostroke.cli.main import EXIT_ERROR, run
from twostroke.simulator.calibration import scenes
from twostroke.simulator.cost.efficiencies import load_efficiencies


def test_from_the_live_engine_to_a_simulation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With every third scene: how well coefficients are found is asked elsewhere."""
    monkeypatch.setattr("twostroke.simulator.calibration.measuring.SCENES", scenes.SCENES[::3])
    file = tmp_path / "own.toml"
    assert run(["calibrate", "pilot-draft", "--rounds", "1", "--output", str(file)]) == 0
    captured = capsys.readouterr()
    assert "kinds of steps; wrote" in captured.out and "measured on" in captured.err
    read = load_efficiencies("cpu", file)
    assert "pilot-draft" in read.origins["host"] and read.measured
    assert (read.measured.device, read.measured.model) == ("cpu", "pilot-draft")
    assert (
        read.measured.machine
        and read.measured.threads
        and read.measured.torch
        and read.measured.date
    )
    simulate = ["simulate", "pilot-draft", "--gpu", "cpu", "--efficiencies", str(file)]
    few = ["--num-requests", "4", "--input-len", "32", "--output-len", "8"]
    assert run([*simulate, *few]) == 0
    captured = capsys.readouterr()
    assert "ttft" in captured.out.lower()
    assert "pilot-draft in" in captured.err and "something else" not in captured.err
    assert "another machine" not in captured.err


def test_a_folder_that_is_missing_is_found_before_measuring(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["calibrate", "--output", str(tmp_path / "no" / "own.toml")]) == EXIT_ERROR
    assert "is no folder" in capsys.readouterr().err
