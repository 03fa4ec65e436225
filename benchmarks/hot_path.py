"""Steps and throughput, beside another tree's.

    python -m benchmarks.hot_path MODEL --other OTHER/src

The engine alone (``bench offline``: median step of prompts and of decoding, by batch size), then
output tokens per second over HTTP (``bench serve`` of this tree against the server of either, 256
tokens in, 64 out). The trees take turns within each round, so that what else the machine does meets
both; ratios are taken within a round.
"""

from __future__ import annotations

import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cyclopts

from benchmarks.environment import ROOT, OtherPrograms, environment, environment_text
from benchmarks.server import running_server

RESULTS = Path(__file__).parent / "results"
INPUT, OUTPUT = 256, 64
HERE = ROOT / "src"


def main(
    model: str,
    *,
    other: Path | None = None,
    rounds: int = 3,
    batches: tuple[int, ...] = (1, 16),
    clients: tuple[int, ...] = (16, 64),
    requests_per_client: int = 6,
    out: Path = RESULTS,
) -> None:
    """Measure, print a line per measurement, and record all of them with their medians.

    Args:
        model: A folder.
        other: The ``src`` folder of the tree to compare with, its kernels compiled.
        rounds: How often each is measured.
        batches: Requests at once in the engine alone.
        clients: Requests at once over HTTP.
        requests_per_client: Requests of a run over HTTP, times the clients.
    """
    trees = {"other": other.resolve(), "this": HERE} if other else {"this": HERE}
    figures: dict[str, dict[str, list[float]]] = {}
    other_programs = OtherPrograms()
    with tempfile.TemporaryDirectory(prefix="twostroke-hot-path-") as folder:
        for number in range(rounds):
            for tree, source in trees.items():
                for name, value in _measure(
                    model, source, Path(folder), batches, clients, requests_per_client, number
                ):
                    figures.setdefault(name, {}).setdefault(tree, []).append(value)
                    print(f"round {number + 1}, {tree}: {name} {value:.2f}", flush=True)
    _record(
        figures,
        Path(model).name,
        environment(
            f"python -m benchmarks.hot_path {shlex.join(sys.argv[1:])}", other_programs.share()
        ),
        out,
    )


def _measure(
    model: str,
    source: Path,
    folder: Path,
    batches: tuple[int, ...],
    clients: tuple[int, ...],
    requests_per_client: int,
    number: int,
) -> Iterator[tuple[str, float]]:
    for batch in batches:
        lengths = ["--input-len", str(INPUT), "--output-len", str(OUTPUT)]
        report = _bench(
            "offline",
            source,
            folder,
            model,
            *lengths,
            "--num-prompts",
            str(max(4, batch)),
            "--batch-size",
            str(batch),
        )
        yield f"prefill step, {batch} prompts (ms)", report["median_prefill_step_ms"]
        yield f"decode step, batch {batch} (ms)", report["median_decode_step_ms"]
    if not clients:
        return
    with running_server(model, folder / "server.log", environment=_environment(source)) as server:
        for count in clients:
            workload = [
                "--random-input-len",
                str(INPUT),
                "--random-output-len",
                str(OUTPUT),
                "--ignore-eos",
            ]
            # A seed that was used before would find its prompts in the prefix cache.
            workload += [
                "--seed",
                str(1000 * number + count),
                "--num-prompts",
                str(requests_per_client * count),
            ]
            report = _bench(
                "serve",
                HERE,
                folder,
                "--base-url",
                server.url,
                "--max-concurrency",
                str(count),
                *workload,
            )
            if report["failed"]:
                raise SystemExit(
                    f"error: {report['failed']} requests failed\n\nhint: see the server's log"
                )
            yield f"over HTTP, {count} clients (output tokens/s)", report["output_throughput"]
            yield f"over HTTP, {count} clients: TPOT (ms)", report["median_tpot_ms"]


def _bench(command: str, source: Path, folder: Path, *flags: str) -> dict[str, Any]:
    path = folder / "report.json"
    line = [sys.executable, "-m", "twostroke", "bench", command, *flags, "--output-json", str(path)]
    subprocess.run(
        line, check=True, env={**os.environ, **_environment(source)}, stdout=subprocess.DEVNULL
    )
    report: dict[str, Any] = json.loads(path.read_text())
    return report


def _environment(source: Path) -> dict[str, str]:
    return {"PYTHONPATH": str(source)}


def _record(
    figures: dict[str, dict[str, list[float]]], model: str, where: dict[str, Any], out: Path
) -> None:
    """Write every figure as JSON, and as Markdown the medians and the rounds' median ratio."""
    lines = [
        "# Steps and throughput",
        "",
        environment_text(where),
        "",
        f"Model {model}, {INPUT} tokens in, {OUTPUT} out; medians.",
    ]
    lines += ["", "| measure | other tree | this tree | this / other |", "|---|---:|---:|---:|"]
    for name, by_tree in figures.items():
        this, other = by_tree["this"], by_tree.get("other")
        ratio = f"{statistics.median(a / b for a, b in zip(this, other)):.2f}" if other else ""
        median = f"{statistics.median(other):.2f}" if other else ""
        lines.append(f"| {name} | {median} | {statistics.median(this):.2f} | {ratio} |")
    out.mkdir(parents=True, exist_ok=True)
    (out / f"hot_path_{model}.json").write_text(
        json.dumps({"environment": where, "figures": figures}, indent=1) + "\n"
    )
    (out / f"hot_path_{model}.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines[6:]))


if __name__ == "__main__":
    cyclopts.run(main)
