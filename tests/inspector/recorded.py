"""Recordings of small simulated runs: real steps of the real scheduler, made in a second."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import mkdtemp

from twostroke.cli.main import run
from twostroke.observability.events import StepEvent
from twostroke.observability.recorder import read_jsonl


@cache
def recording() -> Path:
    """60 requests, half a second of queueing among them, some hundred steps."""
    path = Path(mkdtemp()) / "steps.jsonl"
    flags = ["--num-requests", "60", "--rate", "40", "--max-num-seqs", "12"]
    assert run(["simulate", "llama-3.1-8b", "--gpu", "h100", *flags, "--record", str(path)]) == 0
    return path


@cache
def events() -> list[StepEvent]:
    return list(read_jsonl(recording()))
