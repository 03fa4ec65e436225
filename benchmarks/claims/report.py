"""A claim as one line, and all of them as a file with the machine, the commit and the versions that
made them.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One measured claim.

    Attributes:
        name: The script's.
        claim: What is compared with what.
        measured: Medians, with their unit.
        conditions: All that a reader needs to judge or repeat it.
        target: What was promised, if anything was.
        met: Whether it is; ``None`` without a target or a measurement.
        figures: Every number behind ``measured``, by round.
        recorded: Commit and date of the former run that measured it, if this one could not.
    """

    name: str
    claim: str
    measured: str
    conditions: str
    target: str | None = None
    met: bool | None = None
    figures: dict[str, Any] = field(default_factory=dict)
    recorded: str | None = None

    def line(self) -> str:
        return f"{self.claim} | {self.measured}{self.verdict()} | {self.conditions}"

    def verdict(self) -> str:
        former = f"; measured {self.recorded}" if self.recorded else ""
        if self.target is None:
            return former
        word = {True: "met", False: "MISSED", None: "not measured"}[self.met]
        return f"; target {self.target}: {word}{former}"


class Others:
    """How much of the machine's CPU time everybody else takes (and a hypervisor steals) while
    something is measured.

    A ratio of two timings means little if a third program ran beside one of them.
    """

    def __init__(self) -> None:
        self._busy, self._total = _cpu_seconds()
        self._own = _own_seconds()

    def share(self) -> float | None:
        """Of the CPU time since the start, in [0, 1]; children count as ours once they have ended.
        Linux only.
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
    """A command without what only says where things lie on one machine: of an absolute path, the
    last part.
    """
    quoted, bare = r"(?<=')/[^']*/(?=[^/']+')", r"(?<![^\s\"'=])/[^\s\"'=]*/(?=[^/\s\"'=]+)"
    return re.sub(f"{quoted}|{bare}", ".../", command)


def environment(command: str, others: float | None) -> dict[str, Any]:
    """Where and with what the numbers were made; ``others`` is the share of the CPU that went
    elsewhere meanwhile.
    """
    import torch

    return {
        "command": shown(command),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "cpu": _cpu_model(),
        "cores": (
            len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        ),
        "others_cpu_share": others,
        "threads": torch.get_num_threads(),
        "omp_wait_policy": os.environ.get("OMP_WAIT_POLICY", "default"),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
    }


def environment_text(where: dict[str, Any]) -> str:
    """The same as Markdown."""
    others = where["others_cpu_share"]
    share = "an unknown share" if others is None else f"{others:.1%}"
    return (
        f"- machine: {where['cores']} cores, {where['cpu']}; {where['system']}; others took {share}"
        f" of its CPU time meanwhile\n- commit: {where['commit']}; torch {where['torch']} with"
        f" {where['threads']} threads (OMP_WAIT_POLICY {where['omp_wait_policy']}), Python"
        f" {where['python']}\n- date: {where['date']}\n- command: `{where['command']}`\n"
    )


def keep_recorded(claims: Sequence[Claim], folder: Path) -> list[Claim]:
    """The claims; what could not be measured (its data is not there) is as it was recorded in
    ``folder`` before.
    """
    path = folder / "claims.json"
    former = json.loads(path.read_text()) if path.is_file() else {"claims": []}
    kept = {}
    for fields in former["claims"]:
        claim = Claim(**fields)
        if claim.met is not None:
            recorded = claim.recorded or f"at commit {former['commit']} on {former['date']}"
            kept[claim.claim] = replace(claim, recorded=recorded)
    return [kept.get(c.claim, c) if c.target is not None and c.met is None else c for c in claims]


def write_claims(claims: Sequence[Claim], where: dict[str, Any], folder: Path) -> None:
    """``claims.json`` with every figure, ``claims.md`` to read."""
    folder.mkdir(parents=True, exist_ok=True)
    results = {**where, "claims": [asdict(claim) for claim in claims]}
    (folder / "claims.json").write_text(json.dumps(results, indent=2) + "\n")
    rows = [f"| {c.claim} | {c.measured}{c.verdict()} | {c.conditions} |" for c in claims]
    table = "\n".join(("| claim | measured | conditions |", "|---|---|---|", *rows))
    (folder / "claims.md").write_text(f"# Claims, measured\n\n{environment_text(where)}\n{table}\n")


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


def _commit() -> str:
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


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")),
        platform.machine(),
    )
