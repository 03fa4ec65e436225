"""The report on the simulator itself: requests per second beside the targets, and that reports repeat byte for byte.

Measured by ``speed``, kept in ``benchmarks/results/simulator_speed.json``, written to ``docs/validation/speed.md``.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.simulator import speed
from benchmarks.simulator.data import ROOT

RESULTS = ROOT / "benchmarks" / "results" / "simulator_speed.json"
REPORT = ROOT / "docs" / "validation"
STEPPING, JUMPING, MOONCAKE_SECONDS = 1_000, 10_000, 60
# One of each kind of randomness: drawn lengths and gaps, sessions, tenants and drafts, several replicas.
REPEATED: Mapping[str, Sequence[str]] = {
    "chats, Poisson, interval": ("--rate", "8", "--interval"),
    "sessions on three replicas": ("--workload", "sessions", "--rate", "20", "--replicas", "3"),
    "static batches, gamma": ("--batching", "static", "--rate", "8", "--arrivals", "gamma", "--burstiness", "0.5"),
    "fair, four tenants": ("--policy", "fair", "--tenants", "4", "--rate", "8"),
    "speculation": ("--speculative-tokens", "4", "--rate", "8"),
}
INTRODUCTION = """# Validation of the simulator: its own speed, and that it repeats itself

Written by `python -m benchmarks.simulator.validate --speed`; do not edit. {environment}.

Requests per second of CPU time of one core, Llama 3.1 8B on an H100 (`benchmarks/simulator/speed.py`): taking every
step singly, and with runs of decode steps taken in one go. Both give the same reports, byte for byte.
"""


def measure() -> dict[str, Any]:
    """Everything anew; minutes of a quiet machine."""
    found: dict[str, Any] = {"speed": {}, "repeated": {}}
    for name, scenario in speed.scenarios().items():
        found["speed"][name] = {
            "stepping": speed.measure(scenario, jump=False),
            "jumping": speed.measure(scenario, jump=True),
        }
        print(f"{name}: {found['speed'][name]}", file=sys.stderr)
    found["repeated"] = {name: digests(flags) for name, flags in REPEATED.items()}
    return found


def digests(flags: Sequence[str], requests: int = 200) -> list[str]:
    """SHA-256 of all files of a report, from processes that hash differently; the last takes every step singly."""
    found = []
    with TemporaryDirectory() as folder:
        for number, mode in enumerate(("--jump", "--jump", "--no-jump")):
            paths = [Path(folder) / f"{number}.{kind}" for kind in ("json", "csv", "html")]
            outputs = [text for path in paths for text in (f"--output-{path.suffix[1:]}", str(path))]
            subprocess.run(
                [
                    sys.executable,
                    "-m",
                    "twostroke",
                    "simulate",
                    "--num-requests",
                    str(requests),
                    *flags,
                    mode,
                    *outputs,
                ],
                check=True,
                stdout=subprocess.DEVNULL,
                env={**os.environ, "PYTHONHASHSEED": str(number + 1)},
            )
            found.append(hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest())
    return found


def update(anew: bool, environment: str) -> Path | None:
    """Measure if asked to, and write the report of what was measured last; ``None`` if nothing was."""
    if anew:
        RESULTS.write_text(json.dumps({"environment": environment, **measure()}, indent=1) + "\n", encoding="utf-8")
    if not RESULTS.is_file():
        return None
    kept = json.loads(RESULTS.read_text(encoding="utf-8"))
    path = REPORT / "speed.md"
    path.write_text(report(kept), encoding="utf-8")
    draw(kept["speed"], REPORT / "speed.png")
    return path


def report(kept: Mapping[str, Any]) -> str:
    lines = [INTRODUCTION.format(environment=kept["environment"]), "## Speed", ""]
    lines += [f"| workload | steps | stepping | {STEPPING:,} | jumping | {JUMPING:,} |", "|---|---|---|---|---|---|"]
    for name, found in kept["speed"].items():
        rates = found["stepping"]["per_second"], found["jumping"]["per_second"]
        cells = (f"{rate:,.0f} | {_verdict(rate >= goal)}" for rate, goal in zip(rates, (STEPPING, JUMPING)))
        lines.append(f"| {name} | {found['jumping']['steps']:,} | {' | '.join(cells)} |")
    for name, found in kept["speed"].items():
        if name.startswith("mooncake"):
            seconds = found["jumping"]["seconds"]
            verdict = _verdict(seconds <= MOONCAKE_SECONDS)
            lines += [
                "",
                f"The Mooncake conversation trace takes {seconds:.0f} s; asked were {MOONCAKE_SECONDS}: {verdict}.",
            ]
    lines += [
        "",
        "## Same seed, same report",
        "",
        "| setting | JSON, CSV and HTML of three processes | |",
        "|---|---|---|",
    ]
    for name, found in kept["repeated"].items():
        same = len(set(found)) == 1
        lines.append(f"| {name} | {', '.join(dict.fromkeys(digest[:16] for digest in found))} | {_verdict(same)} |")
    lines += ["", "The third takes every step singly. Each has another seed for Python's own hashes.", ""]
    return "\n".join([*lines, "![Requests per second against steps per request](speed.png)", ""])


def _verdict(met: bool) -> str:
    return "met" if met else "**missed**"


def draw(found: Mapping[str, Any], path: Path) -> None:
    """What a request costs depends on how many steps there are for each."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(4.6, 4.2), dpi=90)
    for mode, goal, colour in (("stepping", STEPPING, "tab:blue"), ("jumping", JUMPING, "tab:orange")):
        each = [one[mode] for one in found.values()]
        steps = [one["steps"] / one["requests"] for one in each]
        axes.plot(steps, [one["per_second"] for one in each], "o", color=colour, label=mode)
        axes.axhline(goal, color=colour, lw=0.7, ls="--")
    axes.set(xscale="log", yscale="log", xlabel="steps per request", ylabel="requests/s", title="speed")
    axes.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, metadata={"Software": None})
    pyplot.close(figure)
