"""Output throughput over HTTP, client and server on the same machine.

    python -m benchmarks.http_throughput

The workload is that of ``vllm bench serve --dataset-name random --random-input-len 256
--random-output-len 64 --ignore-eos --max-concurrency N``, sent by ``twostroke bench serve`` to
``twostroke serve`` with its default flags, and in turn with it to a peer that runs already, if
``--peer-url`` names one (``vllm serve`` with the same checkpoint, say).
"""

from __future__ import annotations

import json
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import cyclopts

from benchmarks import make_checkpoint
from benchmarks.environment import OtherPrograms, environment, environment_text, write_record
from benchmarks.server import running_server

RESULTS = Path(__file__).parent / "results"
# Output tokens a second of vLLM 0.32's CPU build with the same checkpoint shape and workload,
# measured once on another, slower machine (2 cores of an AMD EPYC, 396 GFLOP/s in bf16): a ratio to
# them flatters. --peer-url measures in turn.
VLLM = {("10m", 16): 700.0, ("10m", 64): 1161.0, ("350m", 4): 63.1, ("350m", 16): 97.2}
SECONDS = 900.0  # for one run of the client
COLUMNS = (
    ("mean_ttft_ms", "TTFT, mean ms"),
    ("median_ttft_ms", "median"),
    ("mean_tpot_ms", "TPOT, mean ms"),
    ("p99_itl_ms", "ITL, P99 ms"),
)


def main(
    *,
    model: str = "10m",
    concurrency: tuple[int, ...] = (16, 64),
    requests_each: int = 16,
    input_len: int = 256,
    output_len: int = 64,
    rounds: int = 3,
    peer_url: str | None = None,
    peer_name: str = "vLLM",
    out: Path = RESULTS,
) -> None:
    """Serve a model and measure it at each concurrency.

    Args:
        model: An embedded model, a folder, or 10m or 350m for a random checkpoint of that size.
        concurrency: Requests at a time.
        requests_each: Requests of a run, for each of those at a time.
        input_len: Tokens of a prompt.
        output_len: Tokens of an answer.
        rounds: Runs at each concurrency; their median counts.
        peer_url: Another OpenAI server that serves the same model already; it gets the same load,
            in turn. The record counts its CPU time as that of others.
        peer_name: What to call it.
        out: Folder for the record.
    """
    other_programs = OtherPrograms()
    runs: dict[int, list[dict[str, Any]]] = {clients: [] for clients in concurrency}
    peer_runs: dict[str, list[dict[str, Any]]] = {str(clients): [] for clients in concurrency}
    with tempfile.TemporaryDirectory(prefix="twostroke-http-") as name:
        folder, served = Path(name), model
        if model in make_checkpoint.SIZES:
            served = str(folder / model)
            with redirect_stdout(sys.stderr):
                make_checkpoint.main(model, served)
        with running_server(served, folder / "server.log") as server:
            for seed in range(rounds):
                for clients in concurrency:
                    load = [
                        *(
                            "--num-prompts",
                            str(requests_each * clients),
                            "--max-concurrency",
                            str(clients),
                        ),
                        *(
                            "--random-input-len",
                            str(input_len),
                            "--random-output-len",
                            str(output_len),
                        ),
                        *("--ignore-eos", "--seed", str(seed), "--num-warmups", "4"),
                    ]
                    runs[clients].append(
                        run_client(server.url, load, requests_each * clients, folder)
                    )
                    if peer_url:
                        peer_runs[str(clients)].append(
                            run_client(peer_url, load, requests_each * clients, folder)
                        )
    peer = {"name": peer_name, "runs": peer_runs} if peer_url else None
    text = table(model, runs, input_len, output_len, peer)
    print(text, flush=True)
    command_line = shlex.join(["python", "-m", "benchmarks.http_throughput", *sys.argv[1:]])
    where = environment(command_line, other_programs.share())
    write_record(
        out / f"http_throughput_{Path(model).name}",
        "Throughput over HTTP",
        f"{environment_text(where)}\n{text}",
        {**where, "runs": runs, "peer": peer},
    )


def run_client(url: str, load: Sequence[str], requests: int, folder: Path) -> dict[str, Any]:
    """One run of ``twostroke bench serve``, see ``summary``."""
    report = folder / "report.json"
    command = [sys.executable, "-m", "twostroke", "bench", "serve", "--base-url", url, *load]
    subprocess.run(
        [*command, "--output-json", str(report)],
        check=True,
        stdout=subprocess.DEVNULL,
        timeout=SECONDS,
    )
    return summary(json.loads(report.read_text()), requests)


def summary(report: dict[str, Any], requests: int) -> dict[str, Any]:
    """What is kept of a run.

    Raises:
        SystemExit: Not all requests were answered.
    """
    if report["completed"] != requests:
        raise SystemExit(f"error: {report['completed']} of {requests} requests were answered")
    return {
        key: report[key]
        for key in ("output_throughput", "total_token_throughput", *(k for k, _ in COLUMNS))
    }


def peer_speed(peer: Mapping[str, Any], clients: int) -> float:
    """The recorded peer's output tokens a second at a concurrency, median."""
    return float(statistics.median(run["output_throughput"] for run in peer["runs"][str(clients)]))


def table(
    model: str,
    runs: Mapping[int, Sequence[dict[str, Any]]],
    input_len: int,
    output_len: int,
    peer: Mapping[str, Any] | None = None,
) -> str:
    """Markdown, medians over the rounds; ``peer`` as it is recorded: its name, and its runs."""
    names = " | ".join(name for _, name in COLUMNS)
    rounds = len(next(iter(runs.values())))
    beside = (
        f"{peer['name']}, in turn" if peer else "vLLM 0.32, measured on another, slower machine"
    )
    lines = [
        f"{Path(model).name}, {input_len} tokens in, {output_len} out, default flags; medians of"
        f" {rounds} rounds" + (".\nThe CPU time of others includes the peer's." if peer else "."),
        "",
        f"Tokens against {beside}.",
        "",
        f"| clients | output tok/s (range) | against | {names} |",
        "|---|---|---|" + "---|" * len(COLUMNS),
    ]
    for clients, own_runs in runs.items():
        speeds = [run["output_throughput"] for run in own_runs]
        speed, theirs = (
            statistics.median(speeds),
            peer_speed(peer, clients) if peer else VLLM.get((model, clients)),
        )
        against = f"{speed / theirs:.2f}x of {theirs:g}" if theirs else ""
        rest = " | ".join(
            f"{statistics.median(run[key] for run in own_runs):.1f}" for key, _ in COLUMNS
        )
        spread = f"{speed:.0f} ({min(speeds):.0f} to {max(speeds):.0f})"
        lines.append(f"| {clients} | {spread} | {against} | {rest} |")
    return "\n".join(lines)


if __name__ == "__main__":
    cyclopts.run(main)
