"""Where and with what a number was measured: machine, versions, commit, and what else ran."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import textwrap
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
COLUMNS = 100


class OtherPrograms:
    """Share of the CPU time that other programs take (and a hypervisor steals) meanwhile.

    A ratio of two timings means little if a third program ran beside one of them.
    """

    def __init__(self) -> None:
        self._busy, self._total = _cpu_seconds()
        self._own = _own_seconds()

    def share(self) -> float | None:
        """Of the CPU time since the start, in [0, 1]; ``None`` where there is no /proc.

        Children count as ours once they have ended.
        """
        busy, total = (
            now - then for now, then in zip(_cpu_seconds(), (self._busy, self._total), strict=True)
        )
        return (
            round(min(1.0, max(0.0, busy - (_own_seconds() - self._own)) / total), 3)
            if total
            else None
        )


def shown(command: str) -> str:
    """A command, with only the last part of each absolute path in it."""
    quoted, bare = r"(?<=')/[^']*/(?=[^/']+')", r"(?<![^\s\"'=])/[^\s\"'=]*/(?=[^/\s\"'=]+)"
    return re.sub(f"{quoted}|{bare}", ".../", command)


def environment(command: str, others_share: float | None) -> dict[str, Any]:
    """Where and with what numbers were made.

    ``others_share`` is what ``OtherPrograms.share`` gives.
    """
    import torch

    return {
        "command": shown(command),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "cpu": cpu_model(),
        "cores": (
            len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        ),
        "others_cpu_share": others_share,
        "threads": torch.get_num_threads(),
        "omp_wait_policy": os.environ.get("OMP_WAIT_POLICY", "default"),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
    }


def environment_text(where: dict[str, Any]) -> str:
    """The same as Markdown."""
    others_share = where["others_cpu_share"]
    share = "an unknown share" if others_share is None else f"{others_share:.1%}"
    text = (
        f"- machine: {where['cores']} cores, {where['cpu']}; {where['system']}; others took {share}"
        f" of its CPU time meanwhile\n- commit: {where['commit']}; torch {where['torch']} with"
        f" {where['threads']} threads (OMP_WAIT_POLICY {where['omp_wait_policy']}), Python"
        f" {where['python']}\n- date: {where['date']}\n- command: `{where['command']}`\n"
    )
    return wrapped(text)


def wrapped(text: str) -> str:
    """Markdown with lines of at most 100 columns; rows of tables stay whole."""
    lines = []
    for line in text.split("\n"):
        fits = len(line) <= COLUMNS or line.startswith("|")
        indent = "  " if line.startswith("- ") else ""
        lines += [line] if fits else textwrap.wrap(line, COLUMNS, subsequent_indent=indent)
    return "\n".join(lines)


def _cpu_seconds() -> tuple[float, float]:
    """CPU time of all cores since boot: spent, and passed; zeros where there is no /proc."""
    try:
        first = Path("/proc/stat").read_text().splitlines()[0]
    except OSError:
        return 0.0, 0.0
    # user, nice, system, idle, iowait, irq, softirq, steal; guests' time is in user's already.
    ticks = [int(field) / os.sysconf("SC_CLK_TCK") for field in first.split()[1:9]]
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)


def _own_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def commit() -> str:
    """The commit that is checked out, and whether its code was changed since."""
    try:
        head = _git("rev-parse", "--short=12", "HEAD")
        code = ("src", "benchmarks", ":(exclude,glob)benchmarks/**/results/**")
        return (
            f"{head} with uncommitted changes"
            if _git("status", "--porcelain", "--", *code)
            else head
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(*arguments: str) -> str:
    command = ("git", "-C", str(ROOT), *arguments)
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def write_record(path: Path, title: str, text: str, record: dict[str, Any]) -> None:
    """Write ``path`` with .json for every figure, and with .md to read.

    Args:
        path: File without its ending; folders above it are made.
        text: Markdown behind the title.
        record: With what ``environment`` gave, on its own level or below.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_name(f"{path.name}.json").write_text(json.dumps(record, indent=2) + "\n")
    path.with_name(f"{path.name}.md").write_text(f"# {title}\n\n{text}\n")


def cpu_model() -> str:
    """The processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")),
        platform.machine(),
    )
