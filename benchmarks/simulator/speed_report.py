"""The report on the simulator's own speed, and that reports repeat byte for byte.

Measured by ``speed``, kept in ``benchmarks/results`` (of a machine without AVX-512 in ``avx2``
there), written to ``docs/validation/speed.md``.
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
from textwrap import fill
from typing import Any

from benchmarks.environment import ROOT
from benchmarks.simulator import speed

RESULTS = ROOT / "benchmarks" / "results"
NAME = "simulator_speed.json"
REPORT = ROOT / "docs" / "validation"
STEPPING, JUMPING, MOONCAKE_SECONDS = 1_000, 10_000, 60
# One of each kind of randomness: drawn lengths and gaps, sessions, tenants and drafts, several
# replicas.
REPEATED: Mapping[str, Sequence[str]] = {
    "chats, Poisson, interval": ("--rate", "8", "--interval"),
    "sessions on three replicas": ("--workload", "sessions", "--rate", "20", "--replicas", "3"),
    "static batches, gamma": (
        "--batching",
        "static",
        "--rate",
        "8",
        "--arrivals",
        "gamma",
        "--burstiness",
        "0.5",
    ),
    "fair, four tenants": ("--policy", "fair", "--tenants", "4", "--rate", "8"),
    "speculation": ("--speculative-tokens", "4", "--rate", "8"),
}
INTRODUCTION = """# Validation of the simulator: its own speed, and that it repeats itself

Written by `python -m benchmarks.simulator.validate --speed [FOLDER]`; do not edit. Folders are
those of machines, see [results](../../benchmarks/results): with AVX-512 in `results`, an older and
slower one in `results/avx2`.

Requests per second of CPU time of one core, Llama 3.1 8B on an H100
(`benchmarks/simulator/speed.py`): taking every step singly, and with runs of decode steps taken in
one go. Both give the same reports, byte for byte."""


def measure() -> dict[str, Any]:
    """Everything anew; minutes of a quiet machine."""
    measured: dict[str, Any] = {"loop_seconds": speed.loop_seconds(), "speed": {}, "repeated": {}}
    for name, scenario in speed.scenarios().items():
        measured["speed"][name] = {
            "stepping": speed.measure(scenario, jump=False),
            "jumping": speed.measure(scenario, jump=True),
        }
        print(f"{name}: {measured['speed'][name]}", file=sys.stderr)
    measured["repeated"] = {name: digests(flags) for name, flags in REPEATED.items()}
    return measured


def digests(flags: Sequence[str], requests: int = 200) -> list[str]:
    """SHA-256 of a report's files, from processes of other hash seeds; the last one steps."""
    hashes = []
    with TemporaryDirectory() as folder:
        for number, mode in enumerate(("--jump", "--jump", "--no-jump")):
            paths = [Path(folder) / f"{number}.{kind}" for kind in ("json", "csv", "html")]
            outputs = [
                text for path in paths for text in (f"--output-{path.suffix[1:]}", str(path))
            ]
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
            hashes.append(hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest())
    return hashes


def update(folder: Path | None, environment: str) -> Path | None:
    """Write the report of the last measurements; measure first if there is a folder for it.

    Returns its path; ``None`` if nothing was ever measured.
    """
    folders = [RESULTS, *sorted(path.parent for path in RESULTS.glob(f"*/{NAME}"))]
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"environment": environment, **measure()}, indent=1) + "\n"
        (folder / NAME).write_text(text, encoding="utf-8")
        if folder.resolve() not in [each.resolve() for each in folders]:
            folders.append(folder)
    files = {each.name: each / NAME for each in folders}
    kept = {
        name: json.loads(file.read_text(encoding="utf-8"))
        for name, file in files.items()
        if file.is_file()
    }
    if not kept:
        return None
    path = REPORT / "speed.md"
    path.write_text(report(kept), encoding="utf-8")
    draw({name: one["speed"] for name, one in kept.items()}, REPORT / "speed.png")
    return path


def report(records: Mapping[str, Mapping[str, Any]]) -> str:
    """Of every machine on record, by the name of its folder."""
    lines = [INTRODUCTION]
    for folder, kept in records.items():
        lines += _speed(folder, kept)
    lines += ["", "![Requests per second against steps per request](speed.png)"]
    for folder, kept in records.items():
        lines += _repeated(folder, kept)
    return "\n".join([*lines, ""])


def _speed(folder: str, kept: Mapping[str, Any]) -> list[str]:
    loop = kept.get("loop_seconds")
    pace = (
        ""
        if loop is None
        else f" {speed.LOOP:,} additions in a loop of Python's take this core {loop:.2f} s."
    )
    about = fill(f"{kept['environment']}.{pace}", 99, break_on_hyphens=False)
    lines = ["", f"## Speed, {folder}/{NAME}", "", about, ""]
    lines += [
        f"| workload | steps | stepping | {STEPPING:,} | jumping | {JUMPING:,} |",
        "|---|---|---|---|---|---|",
    ]
    for name, modes in kept["speed"].items():
        rates = modes["stepping"]["per_second"], modes["jumping"]["per_second"]
        cells = (
            f"{rate:,.0f} | {_verdict(rate >= goal)}"
            for rate, goal in zip(rates, (STEPPING, JUMPING))
        )
        lines.append(f"| {name} | {modes['jumping']['steps']:,} | {' | '.join(cells)} |")
    for name, modes in kept["speed"].items():
        if name.startswith("mooncake"):
            seconds = modes["jumping"]["seconds"]
            verdict = _verdict(seconds <= MOONCAKE_SECONDS)
            lines += [
                "",
                (
                    f"The Mooncake conversation trace takes {seconds:.0f} s; asked were"
                    f" {MOONCAKE_SECONDS}: {verdict}."
                ),
            ]
    return lines


def _repeated(folder: str, kept: Mapping[str, Any]) -> list[str]:
    lines = ["", f"## Same seed, same report, {folder}/{NAME}", ""]
    lines += ["| setting | JSON, CSV and HTML of three processes | |", "|---|---|---|"]
    for name, hashes in kept["repeated"].items():
        same = len(set(hashes)) == 1
        lines.append(
            f"| {name} | {', '.join(dict.fromkeys(digest[:16] for digest in hashes))} |"
            f" {_verdict(same)} |"
        )
    return [
        *lines,
        "",
        "The third takes every step singly. Each has another seed for Python's own hashes.",
    ]


def _verdict(met: bool) -> str:
    return "met" if met else "**missed**"


def draw(records: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """Seconds of a request over its number of steps, by machine; the first as dots."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(4.6, 4.2), dpi=90)
    for mode, goal, colour in (
        ("stepping", STEPPING, "tab:blue"),
        ("jumping", JUMPING, "tab:orange"),
    ):
        for number, (name, workloads) in enumerate(records.items()):
            each = [one[mode] for one in workloads.values()]
            steps = [one["steps"] / one["requests"] for one in each]
            rates, label = [one["per_second"] for one in each], f"{mode}, {name}"
            axes.plot(steps, rates, "ox+v"[number % 4], color=colour, label=label)
        axes.axhline(goal, color=colour, lw=0.7, ls="--")
    axes.set(
        xscale="log", yscale="log", xlabel="steps per request", ylabel="requests/s", title="speed"
    )
    axes.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, metadata={"Software": None})
    pyplot.close(figure)
