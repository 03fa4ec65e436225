"""``twostroke trace``: a recording becomes a file that Perfetto opens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from twostroke.cli.main import run
from twostroke.observability.events import StepEvent
from twostroke.observability.recorder import Recorder


def test_recording_becomes_a_trace(tmp_path: Path) -> None:
    recording = tmp_path / "steps.jsonl"
    recorder = Recorder(10, recording)
    recorder.add(StepEvent(step=0, time=1.0, duration=0.5))
    recorder.close()
    output = tmp_path / "trace.json"
    assert run(["trace", str(recording), "--output", str(output)]) == 0
    names = {event["name"] for event in json.loads(output.read_text())["traceEvents"]}
    assert any("step" in name for name in names)


def test_missing_recording_is_one_clear_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["trace", str(tmp_path / "none.jsonl")]) == 1
    assert "cannot read" in capsys.readouterr().err
