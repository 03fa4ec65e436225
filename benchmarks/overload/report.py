"""Tables of goodput by load and mode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.environment import environment_text, wrapped

LOADS = (0.5, 0.9, 1.0, 2.0, 3.0, 5.0, 10.0)
WANTED = 0.9
JUDGED = "deadline, predicted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One run: a mode at a load (times the capacity).

    Attributes:
        good: Requests with their first token within the target; ``late``: other answers.
        refused: Requests that got 429.
        failed: Requests without any answer.
        seconds: For how long requests arrived.
        ttft_p95: Seconds, of those that were answered; ``ttft_p99`` likewise.
    """

    mode: str
    load: float
    sent: int
    good: int
    late: int
    refused: int
    failed: int
    seconds: float
    ttft_p95: float
    ttft_p99: float

    @property
    def goodput(self) -> float:
        """Good requests per second."""
        return self.good / self.seconds

    def fields(self) -> dict[str, Any]:
        return {**asdict(self), "goodput": self.goodput}


def verdict(cells: Sequence[Cell], target: float) -> int:
    """0 if the judged mode keeps its goodput above the capacity, in time, and answers everything.

    Args:
        target: Seconds of TTFT, which P95 of what was answered has to keep.
    """
    judged = [cell for cell in cells if cell.mode == JUDGED]
    peak = max(cell.goodput for cell in judged)
    beyond = [cell for cell in judged if cell.load > 1]
    keep = all(c.goodput >= WANTED * peak and c.ttft_p95 <= target for c in beyond)
    return 0 if keep and not any(cell.failed for cell in judged) else 1


def overload_text(record: Mapping[str, Any], cells: Sequence[Cell]) -> str:
    """The table in Markdown, with what it was measured with."""
    modes = list(dict.fromkeys(cell.mode for cell in cells))
    loads = list(dict.fromkeys(cell.load for cell in cells))
    by_place = {(cell.mode, cell.load): cell for cell in cells}
    lines = [
        f"Capacity {record['capacity']:.1f} requests/s ({record['input_len']} tokens of prompt,"
        f" {record['output_len']} of answer, on average); open loop for {record['seconds']:g} s;"
        f" TTFT target {record['target_ttft']:g} s. Goodput in requests/s, and of its peak:",
        "",
        "| times capacity | " + " | ".join(modes) + " |",
        "|---" * (1 + len(modes)) + "|",
    ]
    for load in loads:
        row = [f"{load:g}"]
        for mode in modes:
            cell = by_place[mode, load]
            peak = max(by_place[mode, other].goodput for other in loads)
            row.append(f"{cell.goodput:.1f} ({cell.goodput / peak:.2f})" if peak else "0")
        lines.append("| " + " | ".join(row) + " |")
    lines += ["", "Above the capacity, with the TTFT of what was answered in seconds:", ""]
    lines += ["| times capacity | | sent | good | late | 429 | no answer | P95 | P99 |"]
    lines += ["|---" * 9 + "|"]
    for load in [load for load in loads if load > 1]:
        for mode in modes:
            cell = by_place[mode, load]
            lines.append(
                f"| {load:g} | {mode} | {cell.sent} | {cell.good} | {cell.late} | {cell.refused} |"
                f" {cell.failed} | {cell.ttft_p95:.2f} | {cell.ttft_p99:.2f} |"
            )
    return wrapped("\n".join([*lines, "", environment_text(record["environment"])]))
