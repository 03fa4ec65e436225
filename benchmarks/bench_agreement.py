"""Do two clients measure the same? ``python -m benchmarks.bench_agreement --aiperf /path/to/venv/bin/aiperf``.

One server, one workload (lengths and concurrency fixed), measured by turns by ``twostroke bench serve`` and by NVIDIA's
AIPerf (https://github.com/ai-dynamo/aiperf). It is no dependency of this project and wants a venv of its own:
``python -m venv /tmp/aiperf && /tmp/aiperf/bin/pip install aiperf==0.13.0``.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cyclopts

from benchmarks.claims.report import Others, environment, environment_text
from benchmarks.server import running_server
from twostroke.model_files import resolve_model

RESULTS = Path(__file__).parent / "results"
# Prompts of the two differ, so that neither may find anything of its own or the other's in the cache.
SERVER_FLAGS = ("--no-enable-prefix-caching", "--kv-cache-memory", "64MiB")
TOKENIZER, COMMIT = "local/served", "0" * 40
TOLERANCE = 0.05
SECONDS = 1200.0  # for one client's run

# What is compared: name, unit, key in our report, key and statistic in AIPerf's.
METRICS = (
    ("TTFT, mean", "ms", "mean_ttft_ms", ("time_to_first_token", "avg")),
    ("TTFT, median", "ms", "median_ttft_ms", ("time_to_first_token", "p50")),
    ("TPOT, mean", "ms", "mean_tpot_ms", ("inter_token_latency", "avg")),
    ("TPOT, median", "ms", "median_tpot_ms", ("inter_token_latency", "p50")),
    ("output throughput", "tok/s", "output_throughput", ("output_token_throughput", "avg")),
    ("request throughput", "req/s", "request_throughput", ("request_throughput", "avg")),
)


class ClientFailedError(RuntimeError):
    """A client ended with an error, or measured another workload than it was asked to; carries the end of its log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What both clients send: so many requests of these lengths, so many at a time."""

    requests: int
    concurrency: int
    input_len: int
    output_len: int


@dataclass(frozen=True, slots=True)
class Row:
    """One metric: the median over the rounds by each client, and how far ours is from theirs."""

    name: str
    unit: str
    ours: float
    theirs: float

    @property
    def difference(self) -> float:
        return self.ours / self.theirs - 1


def main(
    *,
    aiperf: Path = Path("/tmp/aiperf/bin/aiperf"),
    model: str = "pilot",
    requests: int = 200,
    concurrency: int = 4,
    input_len: int = 256,
    output_len: int = 64,
    rounds: int = 3,
    out: Path = RESULTS,
) -> int:
    """Measure one server with both clients, print the table, and record it.

    Args:
        aiperf: Its executable, in a venv of its own.
        model: Served by twostroke; AIPerf needs its tokenizer too, so a folder or an embedded model.
        requests: Of each run.
        concurrency: Requests at a time.
        input_len: Tokens of a prompt.
        output_len: Tokens of an answer.
        rounds: Runs of each client, by turns; their median is compared.
        out: Folder for the record.

    Returns:
        0 if all differences are within 5 %.
    """
    others = Others()
    workload = Workload(requests=requests, concurrency=concurrency, input_len=input_len, output_len=output_len)
    ours: list[dict[str, float]] = []
    theirs: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory(prefix="twostroke-agreement-") as name:
        folder = Path(name)
        with running_server(model, folder / "server.log", *SERVER_FLAGS) as server:
            for number in range(rounds):
                ours.append(run_ours(server.url, workload, folder / f"ours-{number}", seed=number))
                theirs.append(run_aiperf(aiperf, server.url, model, workload, folder / f"aiperf-{number}", seed=number))
                print(f"round {number + 1} of {rounds}: {ours[-1]} {theirs[-1]}", file=sys.stderr, flush=True)
    rows = compare(ours, theirs)
    text = table(rows, workload, rounds)
    print(text, flush=True)
    command = shlex.join(["python", "-m", "benchmarks.bench_agreement", *sys.argv[1:]])
    write(ours, theirs, text, environment(command, others.share()) | {"aiperf": version_of(aiperf)}, out)
    return 0 if all(abs(row.difference) <= TOLERANCE for row in rows) else 1


def run_ours(url: str, workload: Workload, folder: Path, seed: int) -> dict[str, float]:
    """``twostroke bench serve``, in a process as its users run it."""
    folder.mkdir()
    report = folder / "report.json"
    command = [
        *(sys.executable, "-m", "twostroke", "bench", "serve", "--base-url", url),
        *("--num-prompts", str(workload.requests), "--max-concurrency", str(workload.concurrency)),
        *("--random-input-len", str(workload.input_len), "--random-output-len", str(workload.output_len)),
        *("--ignore-eos", "--seed", str(seed), "--num-warmups", "4", "--output-json", str(report)),
    ]
    _run(command, folder / "log")
    return of_ours(json.loads(report.read_text()), workload)


def run_aiperf(aiperf: Path, url: str, model: str, workload: Workload, folder: Path, seed: int) -> dict[str, float]:
    """AIPerf with the same workload, its other services kept off the cores that the server needs."""
    folder.mkdir()
    cache_tokenizer(model, folder / "hub")
    command = [
        *(str(aiperf), "profile", "--model", model, "--tokenizer", TOKENIZER, "--url", url),
        *("--endpoint-type", "completions", "--streaming", "--use-server-token-count"),
        *("--request-count", str(workload.requests), "--num-dataset-entries", str(workload.requests)),
        *("--concurrency", str(workload.concurrency), "--warmup-request-count", "4"),
        *("--prompt-input-tokens-mean", str(workload.input_len), "--prompt-input-tokens-stddev", "0"),
        *("--prompt-output-tokens-mean", str(workload.output_len), "--prompt-output-tokens-stddev", "0"),
        *("--extra-inputs", "ignore_eos:true", "--extra-inputs", "temperature:0", "--random-seed", str(seed)),
        *("--workers-max", "1", "--record-processor-service-count", "1", "--ui-type", "none"),
        *("--no-gpu-telemetry", "--no-server-metrics", "--output-artifact-dir", str(folder)),
    ]
    _run(command, folder / "log", HF_HUB_CACHE=str(folder / "hub"), HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1")
    return of_aiperf(json.loads((folder / "profile_export_aiperf.json").read_text()), workload)


def cache_tokenizer(model: str, hub: Path) -> None:
    """Lay the model's tokenizer out as the Hub's cache would: AIPerf, told to stay offline, loads from nowhere else."""
    place = hub / f"models--{TOKENIZER.replace('/', '--')}"
    snapshot = place / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text(COMMIT)
    for path in resolve_model(model).iterdir():
        if path.suffix in (".json", ".jinja"):
            shutil.copy(path, snapshot)


def of_ours(report: dict[str, Any], workload: Workload) -> dict[str, float]:
    """The compared numbers of our report.

    Raises:
        ClientFailedError: Not all requests were answered in full.
    """
    asked = (workload.requests, workload.requests * workload.input_len, workload.requests * workload.output_len)
    found = (report["completed"], report["total_input_tokens"], report["total_output_tokens"])
    if found != asked:
        raise ClientFailedError(f"bench serve: {found} requests, tokens in and out; asked were {asked}")
    return {name: float(report[key]) for name, _, key, _ in METRICS}


def of_aiperf(report: dict[str, Any], workload: Workload) -> dict[str, float]:
    """The compared numbers of AIPerf's report.

    Raises:
        ClientFailedError: Not all requests were answered, or with other lengths (prompts may be off by 2 %, since
            it makes them as text).
    """
    lengths = [report[name]["avg"] for name in ("input_sequence_length", "output_sequence_length")]
    count = report["request_count"]["avg"]
    near = abs(lengths[0] / workload.input_len - 1) <= 0.02 and lengths[1] == workload.output_len
    if count != workload.requests or not near:
        raise ClientFailedError(f"AIPerf: {count} requests of {lengths} tokens; asked were {workload}")
    return {name: float(report[key][statistic]) for name, _, _, (key, statistic) in METRICS}


def compare(ours: Sequence[dict[str, float]], theirs: Sequence[dict[str, float]]) -> list[Row]:
    """Medians over the rounds."""
    return [
        Row(name, unit, statistics.median(run[name] for run in ours), statistics.median(run[name] for run in theirs))
        for name, unit, _, _ in METRICS
    ]


def table(rows: Sequence[Row], workload: Workload, rounds: int) -> str:
    """Markdown."""
    lines = [
        f"{workload.requests} requests of {workload.input_len} tokens in and {workload.output_len} out, "
        f"{workload.concurrency} at a time; medians of {rounds} rounds by turns",
        "",
        f"| | twostroke bench serve | AIPerf | difference (asked: within {TOLERANCE:.0%}) |",
        "|---|---|---|---|",
        *(f"| {r.name} | {r.ours:.2f} {r.unit} | {r.theirs:.2f} {r.unit} | {r.difference:+.1%} |" for r in rows),
    ]
    return "\n".join(lines)


def version_of(aiperf: Path) -> str:
    """As its executable says it."""
    done = subprocess.run([str(aiperf), "--version"], capture_output=True, text=True, check=True)
    return done.stdout.strip().splitlines()[-1]


def write(
    ours: Sequence[dict[str, float]], theirs: Sequence[dict[str, float]], text: str, where: dict[str, Any], folder: Path
) -> None:
    """``bench_agreement.json`` with every round, ``bench_agreement.md`` to read."""
    folder.mkdir(parents=True, exist_ok=True)
    results = {**where, "twostroke": list(ours), "rounds_of_aiperf": list(theirs)}
    (folder / "bench_agreement.json").write_text(json.dumps(results, indent=2) + "\n")
    version = f"- AIPerf {where['aiperf']}\n"
    (folder / "bench_agreement.md").write_text(
        f"# Two clients, one server\n\n{environment_text(where)}{version}\n{text}\n"
    )


def _run(command: Sequence[str], log: Path, **environment: str) -> None:
    with log.open("wb") as output:
        try:
            subprocess.run(
                command,
                check=True,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=SECONDS,
                env={**os.environ, **environment},
            )
        except FileNotFoundError as error:
            raise ClientFailedError(f"there is no {command[0]}; see the top of this file") from error
        except subprocess.SubprocessError as error:
            lines = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
            raise ClientFailedError(f"{command[0]}: {error}\n{lines}") from error


if __name__ == "__main__":
    sys.exit(cyclopts.run(main))
