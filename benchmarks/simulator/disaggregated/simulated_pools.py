"""A measured server with two pools through ``twostroke simulate``, as a user would type it."""

from __future__ import annotations

import json
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.simulator.disaggregated.measured_pools import SHORTEST, PoolRow, Side
from twostroke.cli.main import run

ROUNDS, PAUSE = 10, 0.0005
# Tokens that SGLang's recipe drafts at most.
DRAFTS = 3


@dataclass(frozen=True, slots=True)
class Fitted:
    """What the rows of one half decide.

    Attributes:
        network: Seconds by which an all-reduce takes longer to start between nodes.
        latency: Seconds that a prompt's blocks take to come, beside their bytes, and whatever else
            lies between two replicas.
        acceptance: Probability that a draft is right.
    """

    network: float = 0.0
    latency: float = 0.001
    acceptance: float = 0.7


@dataclass(frozen=True, slots=True)
class SimulatedPools:
    """Mean seconds."""

    ttft: float
    tpot: float


def command(row: PoolRow, fitted: Fitted) -> list[str]:
    """What a user would type after ``twostroke``, without where coefficients come from."""
    middle, ratio = (1 + SHORTEST) / 2, (1 - SHORTEST) / (1 + SHORTEST)
    arguments = {
        "--prefill": _pool(row.prefill),
        "--decode": _pool(row.decode),
        "--weight-dtype": "fp8",
        "--serving-stack": row.backend,
        "--first-token": "decode",
        "--transfer-latency": fitted.latency,
        "--workload": "random",
        "--input-len": round(middle * row.input),
        "--output-len": round(middle * row.output),
        "--range-ratio": ratio,
        "--arrivals": "closed",
        "--concurrency": row.concurrency,
        "--think-time": PAUSE,
        "--num-requests": ROUNDS * row.concurrency,
    }
    if row.drafts:
        method = {"method": "mtp", "num_speculative_tokens": DRAFTS}
        arguments |= {
            "--speculative-config": json.dumps(method),
            "--acceptance": fitted.acceptance,
        }
    pairs = [(name, str(value)) for name, value in arguments.items()]
    return ["simulate", row.model, *(word for pair in pairs for word in pair)]


def simulate_row(row: PoolRow, fitted: Fitted) -> SimulatedPools:
    """What ``simulate`` says of a row."""
    return _simulate(tuple(command(row, fitted)), fitted.network)


@cache
def _simulate(words: tuple[str, ...], network: float) -> SimulatedPools:
    """What a command line says; rows of equal configurations were measured more than once."""
    with TemporaryDirectory(prefix="twostroke-") as name:
        report, coefficients = Path(name) / "report.json", Path(name) / "network.toml"
        coefficients.write_text(f"[all_reduce]\nnetwork = {network!r}\n", encoding="utf-8")
        arguments = [*words, "--output-json", str(report)]
        arguments += ["--efficiencies", str(coefficients)]
        messages = StringIO()
        with redirect_stdout(StringIO()), redirect_stderr(messages):
            code = run(arguments)
        if code:
            raise RuntimeError(f"{' '.join(arguments)}: {messages.getvalue()}")
        fields: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))["runs"][0]
    return SimulatedPools(fields["mean_ttft_ms"] / 1e3, fields["mean_tpot_ms"] / 1e3)


def _pool(side: Side) -> str:
    settings: dict[str, object] = {
        "gpu": "h100-sxm",
        "replicas": side.replicas,
        "tp": side.tensor,
        "data_parallel_size": side.data,
        "enable_expert_parallel": str(side.expert).lower(),
    }
    if side.batch is not None:
        settings["max_num_seqs"] = side.batch
    return ",".join(f"{name}={value}" for name, value in settings.items())
