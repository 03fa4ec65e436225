"""Protects: ``twostroke plan`` answers on stdout, and mistakes are a line and a hint."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from twostroke.cli.main import run
from twostroke.cli.sizing.plan import EXIT_NO_PLAN

FEW = ["--gpus", "h100,l40s", "--tp", "1", "--max-num-seqs", "64", "--seeds", "1"]
FEW += ["--max-num-batched-tokens", "2048", "--simulate", "1", "--pp", "1", "--pools", "together"]
QUESTION = ["plan", "llama-3.1-8b", "--rate", "10", "--input", "500", "--output", "100", *FEW]


def test_json_and_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = ["--html", str(tmp_path / "plan.html"), "--write-prices", str(tmp_path / "prices.toml")]
    files += ["--manifests", str(tmp_path / "values")]
    goals = ["--ttft", "p95=0.5", "--tpot", "p95=0.04"]
    assert run([*QUESTION, *goals, *files, "--json"]) == 0
    captured = capsys.readouterr()
    plans = json.loads(captured.out)["plans"]
    assert plans[0]["times_from"] == "3 simulations"
    assert "--input-p95 1000" in captured.err
    assert "<svg" in (tmp_path / "plan.html").read_text()
    prices = tomllib.loads((tmp_path / "prices.toml").read_text())
    assert set(prices) == {"h100-sxm", "l40s"}
    assert {path.name for path in (tmp_path / "values").iterdir()} == {
        "kubernetes.yaml",
        "ray-serve.yaml",
        "fleet.toml",
    }
    assert run([*QUESTION, *goals, "--prices", str(tmp_path / "prices.toml")]) == 0
    assert "1. 1 x" in capsys.readouterr().out


def test_targets_that_nothing_meets(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*QUESTION, "--tpot", "p95=0.1ms"]) == EXIT_NO_PLAN
    captured = capsys.readouterr()
    assert "no plan meets the targets; the nearest is" in captured.err
    assert "hint: " in captured.err and "No plan meets" in captured.out


@pytest.mark.parametrize(
    "flags",
    [
        ["plan", "llama-3.1-8b"],
        ["plan", "no-such-model", "--rate", "1"],
        ["plan", "llama-3.1-8b", "--rate", "1", "--gpus", "h1000"],
        ["plan", "llama-3.1-8b", "--rate", "1", "--ttft", "soon"],
        ["plan", "llama-3.1-8b", "--rate", "1", "--html", "/no/such/folder/plan.html"],
        ["plan", "llama-3.1-8b", "--rate", "1", "--manifests", __file__],
        ["plan", "llama-3.1-8b", "--rate", "1", "--trace-path", "/no/trace"],
        ["plan", "llama-3.1-8b", "--trace-path", __file__],
        ["plan", "llama-3.1-8b", "--rate", "-1"],
        ["plan", "llama-3.1-8b", "--users", "0"],
        ["plan", "llama-3.1-8b", "--rate", "1", "--output", "-3"],
        ["plan", "llama-3.1-8b", "--rate", "1", "--tpot", "p95=-1"],
        ["plan", "llama-3.1-8b", "--rate", "1", "--prices", "/no/prices"],
        ["plan", "llama-3.1-8b", "--rate", "1", "--pools", "mixed"],
        ["plan", "llama-3.1-8b", "--rate", "1", "--lengths", "azure-conv", "--input", "5"],
    ],
)
def test_mistakes_are_a_line_and_a_hint(
    flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(flags) in (1, 2)
    captured = capsys.readouterr()
    error, blank, hint, *rest = captured.err.splitlines()
    assert error.startswith("error: ") and not blank and hint.startswith("hint: ") and not rest
    assert captured.out == ""
