"""``twostroke quantize``: a folder that serves, and a report of what it costs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from twostroke import LLM, SamplingParams
from twostroke.cli.main import run


def test_pilot_rounded_to_int8_says_what_pilot_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "pilot-int8"
    assert run(["quantize", "pilot", "--to", "int8", "-o", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert "linear layers rounded" in shown and "likeliest tokens" in shown
    report = json.loads((folder / "quantization_report.json").read_text())
    compared = report["compared"]
    assert compared["tokens"] > 500
    assert compared["same"] > 0.95 * compared["tokens"]
    assert compared["perplexity_after"] < 1.1 * compared["perplexity_before"]
    assert max(report["errors"].values()) < 0.02
    assert run(["models", str(folder), "--json"]) == 0
    survey = json.loads(capsys.readouterr().out)  # what stays as it is stored counts so
    assert survey["weight_bytes"] == pytest.approx(report["bytes_after"], rel=0.03)
    with LLM(str(folder), kv_cache_memory=2**26) as now, LLM(kv_cache_memory=2**26) as was:
        params = SamplingParams(temperature=0, max_tokens=8)
        texts = [one.generate("Prefill is", params)[0].text for one in (was, now)]
    assert texts[0] == texts[1]


def test_a_text_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "text.txt"
    text.write_text("Prefill computes all tokens of a prompt at once. " * 20)
    arguments = ["--text", str(text), "-o", str(tmp_path / "out")]
    assert run(["quantize", "pilot", *arguments]) == 0
    assert "on your text" in capsys.readouterr().out


def test_what_is_wrong_is_said_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = str(tmp_path / "missing.txt")
    assert run(["quantize", "pilot", "--text", missing, "-o", str(tmp_path / "out")]) == 1
    assert f"cannot read --text {missing}" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert run(["quantize", "pilot"]) == 2
    assert "--output" in capsys.readouterr().err
