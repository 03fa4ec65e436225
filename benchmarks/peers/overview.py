"""Every target that names a peer, in one table made of the records.

    python -m benchmarks.peers.overview

Reads ``peers-*.json``, ``http_throughput_10m.json`` and ``memory.json`` and writes ``peers.md``.
Where several records have a measure, the one in which the best peer came closest to twostroke, or
left it furthest behind, is shown.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cyclopts

from benchmarks.http_throughput import VLLM as VLLM_OVER_HTTP
from benchmarks.http_throughput import peer_speed
from benchmarks.memory import TARGET as MEMORY
from benchmarks.peers.report import (
    TARGETS,
    Comparison,
    Figures,
    FiguresByConcurrency,
    Target,
    number,
    verdict,
)

RESULTS = Path(__file__).parents[1] / "results"
OVER_HTTP = 2.5  # times vLLM's output tokens a second
NOT_MEASURED = "not measured"


@dataclass(frozen=True, slots=True)
class Record:
    """One run of ``benchmarks.peers``."""

    name: str
    model: str
    figures: FiguresByConcurrency

    @classmethod
    def read(cls, path: Path) -> Record:
        data = json.loads(path.read_text())
        figures = {
            int(count): {
                name: Figures(**{**one, "rounds": tuple(one["rounds"])})
                for name, one in systems.items()
            }
            for count, systems in data["figures"].items()
        }
        return cls(path.stem, data["model"], figures)


def main(results: Path = RESULTS) -> None:
    """Write the table.

    Args:
        results: Folder of the records.
    """
    records = [Record.read(path) for path in sorted(results.glob("peers-*.json"))]
    http = _read(results / "http_throughput_10m.json")
    foreign = (
        ", but for vLLM's figures over HTTP that are another machine's: that one was slower, so the"
        " ratio flatters twostroke (`benchmarks.http_throughput --peer-url` measures in turn)"
    )
    about = (
        "`python -m benchmarks.peers.overview`; machine, commit and versions stand in the records. "
    )
    lines = [
        "# All that is asked beside its peers",
        "",
        f"{about}Ratios are of one run{'' if http and http.get('peer') else foreign}.",
        "",
        "| model | measure | twostroke | best peer | ratio | asked | | record |",
        "|---|---|---:|---:|---:|---:|---|---|",
        *(row(target, records) for target in TARGETS),
        *over_http(http),
        memory_row(_read(results / "memory.json")),
    ]
    (results / "peers.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


def row(target: Target, records: Sequence[Record]) -> str:
    """The hardest of the comparisons, and whether the target's peer was measured beside it."""
    start = f"| {target.model} | {target.measure} |"
    comparisons = [
        (one, record)
        for record in records
        if record.model == target.model
        for one in _compared(target, record)
    ]
    if not comparisons:
        return f"{start} | | | {target.asked} | {NOT_MEASURED} | |"
    one, record = (min if target.higher else max)(comparisons, key=lambda each: each[0].ratio)
    named = target.peers[0]
    there = any(named in each.figures.get(target.concurrency, {}) for _, each in comparisons)
    judged = verdict(one.met) + ("" if there else f"; {named} {NOT_MEASURED}")
    return (
        f"{start} {number(one.value)} | {one.peer}: {number(one.peer_value)} |"
        f" {one.ratio:.2f} |"
        f" {target.asked} | {judged} | [{record.name}]({record.name}.md) |"
    )


def _compared(target: Target, record: Record) -> Iterator[Comparison]:
    one = target.compare(record.figures)
    if one is not None:
        yield one


def over_http(record: dict[str, Any] | None) -> Iterator[str]:
    """Rows of the 10m model over HTTP, medians over the rounds."""
    for (model, count), theirs in VLLM_OVER_HTTP.items():
        if model != "10m":
            continue
        start = f"| {model} | output tokens/s over HTTP, {count} clients |"
        runs = [] if record is None else record["runs"].get(str(count), [])
        if not runs:
            yield f"{start} | vLLM: {number(theirs)} | | >= {OVER_HTTP:g} | {NOT_MEASURED} | |"
            continue
        own_speed, peer = (
            statistics.median(run["output_throughput"] for run in runs),
            (record or {}).get("peer"),
        )
        name, theirs = (
            (peer["name"], peer_speed(peer, count)) if peer else ("vLLM, another machine's", theirs)
        )
        ratio = own_speed / theirs
        yield (
            f"{start} {number(own_speed)} | {name}: {number(theirs)} | {ratio:.2f} | >="
            f" {OVER_HTTP:g} | {verdict(ratio >= OVER_HTTP)} |"
            " [http_throughput_10m](http_throughput_10m.md) |"
        )


def memory_row(record: dict[str, Any] | None) -> str:
    """What a server of 350m with 1 GiB of KV takes beside weights and KV, in MB."""
    start, asked = "| 350m | resident beside weights and KV, MB |", f"<= {MEMORY / 1e6:.0f} MB"
    if record is None:
        return f"{start} | | | {asked} | {NOT_MEASURED} | |"
    resident = record["resident"]["none"]
    beside = resident["loaded"] - resident["weights"] - resident["kv"]
    return (
        f"{start} {beside / 1e6:.0f} | | | {asked} | {verdict(beside <= MEMORY)} |"
        " [memory](memory.md) |"
    )


def _read(path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    record: dict[str, Any] = json.loads(path.read_text())
    return record


if __name__ == "__main__":
    cyclopts.run(main)
