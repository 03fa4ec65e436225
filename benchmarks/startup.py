"""Seconds from starting ``twostroke serve`` to its first streamed token.

    python -m benchmarks.startup

Each run starts a server process of its own, asks ``/health`` until it answers 200, then streams one
completion. The first run of each model is not counted: what is claimed is the time with a warm
disk.
"""

from __future__ import annotations

import json
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cyclopts
import httpx

from benchmarks import make_checkpoint
from benchmarks.environment import OtherPrograms, environment, environment_text, write_record
from benchmarks.server import DEADLINE, ServerFailedError, running_server

RESULTS = Path(__file__).parent / "results"
TARGETS = {"pilot": 4.0, "350m": 8.0}
PROMPT = "A language model answers in two strokes."


@dataclass(frozen=True, slots=True)
class Start:
    """Seconds from the process's start until ``/health`` answers 200, and to the first text."""

    healthy: float
    first_token: float


def main(*models: str, runs: int = 5, out: Path = RESULTS) -> None:
    """Measure start-up, print one line per model, and record it all.

    Args:
        models: pilot and 350m (a random checkpoint) by default; also a folder.
        runs: How often each is started, after one run that is not counted.
        out: Folder for the record.
    """
    starts_by_model: dict[str, list[Start]] = {}
    other_programs = OtherPrograms()
    with tempfile.TemporaryDirectory(prefix="twostroke-startup-") as folder:
        for name in models or TARGETS:
            model = name
            if name in make_checkpoint.SIZES:
                model = str(Path(folder) / name)
                with redirect_stdout(sys.stderr):
                    make_checkpoint.main(name, model)
            starts = []
            for number in range(runs + 1):
                starts.append(start_once(model, Path(folder) / "server.log"))
                counted = f"{number} of {runs}" if number else "not counted"
                print(
                    f"{name}, run {counted}: {starts[-1].first_token:.2f} s",
                    file=sys.stderr,
                    flush=True,
                )
            starts_by_model[name] = starts[1:]
            print(describe(name, starts_by_model[name]), flush=True)
    command = shlex.join(["python", "-m", "benchmarks.startup", *sys.argv[1:]])
    _write(starts_by_model, environment(command, other_programs.share()), out)


def start_once(model: str, log: Path) -> Start:
    """Start a server, wait for its first token, and end it."""
    with running_server(model, log) as server:
        began = time.perf_counter()
        _wait_for_token(server.url)
        return Start(server.ready_seconds, server.ready_seconds + time.perf_counter() - began)


def _wait_for_token(url: str) -> None:
    """Stream a completion up to the first text in it."""
    body = {
        "prompt": PROMPT,
        "max_tokens": 16,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }
    with httpx.stream(
        "POST", f"{url}/v1/completions", json=body, timeout=DEADLINE, trust_env=False
    ) as response:
        if response.status_code != 200:
            raise ServerFailedError(
                f"{response.status_code}: {response.read().decode(errors='replace')}"
            )
        for text in _texts(response.iter_lines()):
            if text:
                return
    raise ServerFailedError("the answer ended without any text")


def _texts(lines: Iterator[str]) -> Iterator[str]:
    for line in lines:
        if line.startswith("data: {"):
            yield "".join(
                choice["text"] for choice in json.loads(line.removeprefix("data: "))["choices"]
            )


def _summary(values: list[float]) -> str:
    return f"median {statistics.median(values):.2f} s, min {min(values):.2f}, max {max(values):.2f}"


def describe(name: str, starts: list[Start]) -> str:
    """One line: first tokens, verdict, conditions."""
    tokens = [start.first_token for start in starts]
    verdict = ""
    if target := TARGETS.get(name):
        verdict = (
            f"; target {target:g} s: {'met' if statistics.median(tokens) <= target else 'MISSED'}"
        )
    return (
        f"twostroke serve {name} to the first streamed token | {_summary(tokens)}{verdict} |"
        f" /health 200 after {_summary([start.healthy for start in starts])}; {len(starts)} runs"
        " with a warm disk"
    )


def _write(starts_by_model: dict[str, list[Start]], where: dict[str, Any], folder: Path) -> None:
    models = {
        name: {
            "healthy": [s.healthy for s in starts],
            "first_token": [s.first_token for s in starts],
        }
        for name, starts in starts_by_model.items()
    }
    lines = "\n".join(
        f"- {describe(name, starts)}".replace(" | ", "\n  - ")
        for name, starts in starts_by_model.items()
    )
    record = {**where, "targets_seconds": TARGETS, "seconds": models}
    text = f"{environment_text(where)}\n{lines}"
    write_record(folder / "startup", "Start-up, measured", text, record)


if __name__ == "__main__":
    cyclopts.run(main)
