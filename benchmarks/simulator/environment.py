"""Where a report of the simulator was made, in one line: date, commit, versions and processor."""

from __future__ import annotations

import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from benchmarks.environment import ROOT


def environment() -> str:
    """Of what is computed: estimates depend on no clock."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    date = datetime.now(UTC).strftime("%Y-%m-%d")
    return (
        f"{date}, commit {commit or 'unknown'}, Python {platform.python_version()}, NumPy"
        f" {version('numpy')}, {processors()}"
    )


def engine_environment() -> str:
    """Of what the live engine measured: PyTorch's version as well."""
    return f"{environment()}, PyTorch {version('torch')}"


def processors() -> str:
    """How many processors the machine has, and their name."""
    path = Path("/proc/cpuinfo")
    if not path.is_file():
        return platform.machine()
    names = [
        line.split(":", 1)[1].strip()
        for line in path.read_text().splitlines()
        if line.startswith("model name")
    ]
    return f"{len(names)} x {names[0]}" if names else platform.machine()
