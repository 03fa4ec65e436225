"""Protects: ``twostroke simulate`` says first, and in its exit, whether it keeps up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from twostroke.cli.main import run


def test_a_sweep_with_an_overloaded_run_says_so_in_its_exit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "out.json"
    lengths = ["--workload", "random", "--input-len", "512", "--output-len", "64"]
    flags = ["simulate", "llama-3.1-8b", *lengths, "--num-requests", "1500"]
    assert run([*flags, "--sweep", "rate=10,75", "--output-json", str(path)]) == 3
    assert "overloaded" in capsys.readouterr().out
    verdicts = [report["verdict"] for report in json.loads(path.read_text())["runs"]]
    assert verdicts == ["stable", "overloaded"]
    assert run([*flags, "--sweep", "rate=5,10"]) == 0
    capsys.readouterr()
    assert run([*flags, "--rate", "75"]) == 0
    assert capsys.readouterr().out.startswith("Overloaded: ")


def test_the_highest_rate_that_meets_the_targets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It meets them, and a somewhat higher one does not."""
    path = tmp_path / "out.json"
    lengths = ["--workload", "random", "--input-len", "512", "--output-len", "16"]
    slo = ["--slo", "ttft=0.2", "--output-json", str(path)]
    flags = ["simulate", "llama-3.1-8b", *lengths, "--num-requests", "500", *slo]
    assert run([*flags, "--find", "rate"]) == 0
    assert capsys.readouterr().out.startswith("Highest rate at which 90% of requests meet ttft=0.2")
    (found,) = json.loads(path.read_text())["runs"]
    rate, count = found["setting"]["rate"], found["setting"]["num_requests"]
    assert found["good_share"] >= 0.9 and found["verdict"] == "stable"
    assert run([*flags, "--rate", str(1.1 * rate), "--num-requests", str(count)]) == 0
    (above,) = json.loads(path.read_text())["runs"]
    assert above["good_share"] < 0.9 or above["verdict"] == "overloaded"


def test_a_workload_that_is_refused_as_a_whole_is_an_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    flags = ["simulate", "llama-3.1-8b", "--workload", "random", "--num-requests", "3"]
    assert run([*flags, "--input-len", "200000"]) == 1
    assert "no request was served: all 3 were refused" in capsys.readouterr().err
