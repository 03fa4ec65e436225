"""One measured server through ``twostroke simulate``, as a user would type it.

The command line is parsed, run and reported as always; the figures come from its ``--output-json``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.simulator.servers.measured import FRONT_END, SHORTEST, ServingRow
from twostroke.cli.main import run

# Prompts of each client in a closed loop, and seconds from an answer's end to the next prompt: a
# server that has become idle starts on the first of several, and the clients part.
ROUNDS, PAUSE = 10, 0.0005
# Reasons that requests wait for others to end.
PLACES = ("max_num_seqs", "no_free_block")


@dataclass(frozen=True, slots=True)
class Simulated:
    """What ``simulate`` says of a server; seconds.

    ``full``: requests waited for a place that others left only at their end, or the front end had
    more to do than any keeps up with.
    """

    ttft: float
    tpot: float
    full: bool


def command(row: ServingRow) -> list[str]:
    """What a user would type after ``twostroke``, without where coefficients come from."""
    middle, ratio = row.mean_share, (1 - SHORTEST) / (1 + SHORTEST)
    arguments = {
        "--gpu": "h100-sxm",
        "--tp": row.ranks,
        "--weight-dtype": row.weights,
        "--kv-cache-dtype": row.kv_format,
        "--serving-stack": row.backend,
        "--max-num-batched-tokens": row.budget,
        "--max-num-seqs": max(256, row.concurrency),
        "--workload": "random",
        "--input-len": round(middle * row.input),
        "--output-len": round(middle * row.output),
        "--range-ratio": ratio if row.has_drawn_lengths else 0,
        "--num-requests": row.concurrency * (1 if row.is_burst else ROUNDS),
    }
    if not row.is_burst:
        arguments |= {
            "--arrivals": "closed",
            "--concurrency": row.concurrency,
            "--think-time": PAUSE,
        }
    pairs = [(name, str(value)) for name, value in arguments.items()]
    flags = ["--enable-expert-parallel"] if row.experts_apart else []
    return ["simulate", row.model, *flags, *(word for pair in pairs for word in pair)]


def simulate_rows(
    rows: Sequence[ServingRow], coefficients: Mapping[ServingRow, str] | None = None
) -> list[Simulated | None]:
    """What ``simulate`` says of each row; ``None`` where it refuses (the model does not fit).

    Args:
        coefficients: TOML for ``--efficiencies`` by row; by default those that are shipped.
    """
    with TemporaryDirectory(prefix="twostroke-") as folder:
        return [_simulate(row, (coefficients or {}).get(row), Path(folder)) for row in rows]


def _simulate(row: ServingRow, coefficients: str | None, folder: Path) -> Simulated | None:
    report = folder / "report.json"
    arguments = [*command(row), "--output-json", str(report)]
    if coefficients is not None:
        path = folder / "efficiencies.toml"
        path.write_text(coefficients, encoding="utf-8")
        arguments += ["--efficiencies", str(path)]
    messages = StringIO()
    with redirect_stdout(StringIO()), redirect_stderr(messages):
        code = run(arguments)
    if code:
        if "does not fit" in messages.getvalue():
            return None
        raise RuntimeError(f"{' '.join(arguments)}: {messages.getvalue()}")
    fields: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))["runs"][0]
    waits = sum(fields["waiting_for"].get(reason, 0.0) for reason in PLACES)
    return Simulated(
        ttft=fields["mean_ttft_ms"] / 1e3,
        tpot=fields["mean_tpot_ms"] / 1e3,
        full=waits > 0 or fields["output_throughput"] > FRONT_END,
    )
