"""Do two clients measure the same on one server?

    python -m benchmarks.bench_agreement --aiperf /path/to/venv/bin/aiperf

One server, one workload (lengths and concurrency fixed), measured by turns by ``twostroke bench
serve`` and by NVIDIA's AIPerf (https://github.com/ai-dynamo/aiperf). It is no dependency of this
project and wants a venv of its own: ``python -m venv VENV && VENV/bin/pip install aiperf==0.13.0``.
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
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cyclopts
import httpx

from benchmarks import make_checkpoint
from benchmarks.environment import OtherPrograms, environment, environment_text, write_record
from benchmarks.server import running_server
from twostroke.model_spec.model_files import resolve_model

RESULTS = Path(__file__).parent / "results"
# Prompts of the two differ, so that neither may find anything of its own or the other's in the
# cache.
SERVER_FLAGS = (
    "--no-enable-prefix-caching",
    "--served-model-name",
    "served",
    "--max-model-len",
    "2048",
)
TOKENIZER, COMMIT = "local/served", "0" * 40
# The server's own view of a client's requests: our name of the metric, and the histogram whose mean
# it is.
SEEN = "seen by the server: "
SERVER_VIEW = {
    "TTFT, mean": "vllm:time_to_first_token_seconds",
    "TPOT, mean": "vllm:request_time_per_output_token_seconds",
}
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
    """A client failed, or measured another workload; carries the end of its log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What both clients send: so many requests of these lengths, so many at a time."""

    requests: int
    concurrency: int
    input_len: int
    output_len: int


@dataclass(frozen=True, slots=True)
class Row:
    """One metric: each client's median over the rounds, and the median difference.

    By rounds, since a machine that is slower for a while is so for both clients of a round.
    """

    name: str
    unit: str
    ours: float
    theirs: float
    difference: float
    judged: bool = True


def main(
    *,
    aiperf: Path = Path("aiperf"),
    model: str = "350m",
    requests: int = 24,
    concurrency: int = 4,
    input_len: int = 256,
    output_len: int = 64,
    rounds: int = 3,
    threads: int = 1,
    out: Path = RESULTS,
) -> int:
    """Measure one server with both clients, print the table, and record it.

    Args:
        aiperf: Its executable, in a venv of its own; by default the one on the PATH.
        model: An embedded model, a folder, or 10m or 350m for a random checkpoint of that size.
        requests: Of each run.
        concurrency: Requests at a time.
        input_len: Tokens of a prompt.
        output_len: Tokens of an answer.
        rounds: Runs of each client, by turns, first the one, then the other.
        threads: Of the server's computations; it should leave a core to the client.
        out: Folder for the record.

    Returns:
        0 if all differences are within 5 %.
    """
    other_programs = OtherPrograms()
    workload = Workload(
        requests=requests, concurrency=concurrency, input_len=input_len, output_len=output_len
    )
    runs: dict[str, list[dict[str, float]]] = {"ours": [], "theirs": []}
    with tempfile.TemporaryDirectory(prefix="twostroke-agreement-") as name:
        folder = Path(name)
        served = model
        if model in make_checkpoint.SIZES:
            served = str(folder / model)
            with redirect_stdout(sys.stderr):
                make_checkpoint.main(model, served)
        with running_server(
            served,
            folder / "server.log",
            *SERVER_FLAGS,
            environment={"OMP_NUM_THREADS": str(threads)},
        ) as server:
            for number in range(rounds):
                for turn in ("ours", "theirs") if number % 2 == 0 else ("theirs", "ours"):
                    place, before = folder / f"{turn}-{number}", observe(server.url)
                    if turn == "ours":
                        run = run_ours(server.url, workload, place, number)
                    else:
                        run = run_aiperf(aiperf, server.url, served, workload, place, number)
                    runs[turn].append(run | seen_by_server(before, observe(server.url)))
                latest = [client_runs[-1] for client_runs in runs.values()]
                print(f"round {number + 1} of {rounds}: {latest}", file=sys.stderr, flush=True)
    rows = compare(runs["ours"], runs["theirs"])
    text = table(rows, workload, rounds)
    print(text, flush=True)
    command = shlex.join(["python", "-m", "benchmarks.bench_agreement", *sys.argv[1:]])
    write(
        runs,
        text,
        environment(command, other_programs.share()) | {"aiperf": version_of(aiperf)},
        out / f"bench_agreement_{Path(model).name}",
    )
    return 0 if all(abs(row.difference) <= TOLERANCE for row in rows if row.judged) else 1


def run_ours(url: str, workload: Workload, folder: Path, seed: int) -> dict[str, float]:
    """``twostroke bench serve``, in a process as its users run it."""
    folder.mkdir()
    report = folder / "report.json"
    command = [
        *(sys.executable, "-m", "twostroke", "bench", "serve", "--base-url", url),
        *("--num-prompts", str(workload.requests), "--max-concurrency", str(workload.concurrency)),
        *(
            "--random-input-len",
            str(workload.input_len),
            "--random-output-len",
            str(workload.output_len),
        ),
        *("--ignore-eos", "--seed", str(seed), "--num-warmups", "4", "--output-json", str(report)),
    ]
    run_client(command, folder / "log")
    return of_ours(json.loads(report.read_text()), workload)


def run_aiperf(
    aiperf: Path, url: str, model: str, workload: Workload, folder: Path, seed: int
) -> dict[str, float]:
    """AIPerf on the same workload, its other services kept off the server's cores."""
    folder.mkdir()
    cache_tokenizer(model, folder / "hub")
    command = [
        *(str(aiperf), "profile", "--model", "served", "--tokenizer", TOKENIZER, "--url", url),
        *("--endpoint-type", "completions", "--streaming", "--use-server-token-count"),
        *(
            "--request-count",
            str(workload.requests),
            "--num-dataset-entries",
            str(workload.requests),
        ),
        *("--concurrency", str(workload.concurrency), "--warmup-request-count", "4"),
        *(
            "--prompt-input-tokens-mean",
            str(workload.input_len),
            "--prompt-input-tokens-stddev",
            "0",
        ),
        *(
            "--prompt-output-tokens-mean",
            str(workload.output_len),
            "--prompt-output-tokens-stddev",
            "0",
        ),
        *(
            "--extra-inputs",
            "ignore_eos:true",
            "--extra-inputs",
            "temperature:0",
            "--random-seed",
            str(seed),
        ),
        *("--workers-max", "1", "--record-processor-service-count", "1", "--ui-type", "none"),
        *("--no-gpu-telemetry", "--no-server-metrics", "--output-artifact-dir", str(folder)),
    ]
    run_client(
        command,
        folder / "log",
        HF_HUB_CACHE=str(folder / "hub"),
        HF_HUB_OFFLINE="1",
        TRANSFORMERS_OFFLINE="1",
    )
    return of_aiperf(json.loads((folder / "profile_export_aiperf.json").read_text()), workload)


def cache_tokenizer(model: str, hub: Path) -> None:
    """Lay out the model's tokenizer as the Hub's cache does, where AIPerf looks offline."""
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
    asked = (
        workload.requests,
        workload.requests * workload.input_len,
        workload.requests * workload.output_len,
    )
    counts = (report["completed"], report["total_input_tokens"], report["total_output_tokens"])
    if counts != asked:
        raise ClientFailedError(
            f"bench serve: {counts} requests, tokens in and out; asked were {asked}"
        )
    return {name: float(report[key]) for name, _, key, _ in METRICS}


def of_aiperf(report: dict[str, Any], workload: Workload) -> dict[str, float]:
    """The compared numbers of AIPerf's report.

    Raises:
        ClientFailedError: Not all requests were answered, or with other lengths (prompts may be off
            by 2 %, since it makes them as text).
    """
    lengths = [report[name]["avg"] for name in ("input_sequence_length", "output_sequence_length")]
    count = report["request_count"]["avg"]
    near = abs(lengths[0] / workload.input_len - 1) <= 0.02 and lengths[1] == workload.output_len
    if count != workload.requests or not near:
        errors = report.get("error_summary")
        raise ClientFailedError(
            f"AIPerf: {count} requests of {lengths} tokens; asked were {workload}; errors: {errors}"
        )
    return {name: float(report[key][statistic]) for name, _, _, (key, statistic) in METRICS}


def compare(ours: Sequence[dict[str, float]], theirs: Sequence[dict[str, float]]) -> list[Row]:
    """Medians over the rounds; ``ours`` and ``theirs`` in the same order."""
    both = list(zip(ours, theirs, strict=True))
    rows = [
        _row(name, unit, [(run[name], other[name]) for run, other in both])
        for name, unit, _, _ in METRICS
    ]
    for name in SERVER_VIEW:
        pairs = [
            (run[name] / run[SEEN + name], other[name] / other[SEEN + name]) for run, other in both
        ]
        rows.append(
            _row(
                f"{name}, over what the server saw of this client",
                "",
                pairs,
                judged=False,
            )
        )
    return rows


def _row(name: str, unit: str, pairs: Sequence[tuple[float, float]], *, judged: bool = True) -> Row:
    mine, other = (statistics.median(values) for values in zip(*pairs, strict=True))
    return Row(name, unit, mine, other, statistics.median(a / b - 1 for a, b in pairs), judged)


def observe(url: str) -> dict[str, tuple[float, float]]:
    """Sum in milliseconds, and count, of each histogram of ``SERVER_VIEW`` so far."""
    lines = httpx.get(f"{url}/metrics", trust_env=False).text.splitlines()

    def value(name: str) -> float:
        return next((float(line.split()[-1]) for line in lines if line.startswith(name + "{")), 0.0)

    return {
        name: (1000 * value(f"{key}_sum"), value(f"{key}_count"))
        for name, key in SERVER_VIEW.items()
    }


def seen_by_server(
    before: Mapping[str, tuple[float, float]], after: Mapping[str, tuple[float, float]]
) -> dict[str, float]:
    """Means of all between two readings (warm-ups too), named as our metrics behind ``SEEN``."""
    return {
        SEEN + name: (after[name][0] - before[name][0]) / max(1.0, after[name][1] - before[name][1])
        for name in after
    }


def table(rows: Sequence[Row], workload: Workload, rounds: int) -> str:
    """Markdown."""
    lines = [
        (
            f"{workload.requests} requests of {workload.input_len} tokens in and"
            f" {workload.output_len} out, {workload.concurrency} at a time;\nmedians of {rounds}"
            " rounds, of the differences as well"
        ),
        "",
        f"| | twostroke bench serve | AIPerf | difference (asked: within {TOLERANCE:.0%}) |",
        "|---|---|---|---|",
        *(
            f"| {r.name} | {r.ours:.2f} {r.unit} | {r.theirs:.2f} {r.unit} | "
            f"{r.difference:+.1%}{'' if r.judged else ' (not judged)'} |"
            for r in rows
        ),
    ]
    return "\n".join(lines)


def version_of(aiperf: Path) -> str:
    """As its executable says it."""
    done = subprocess.run([str(aiperf), "--version"], capture_output=True, text=True, check=True)
    return done.stdout.strip().splitlines()[-1]


def write(
    runs: Mapping[str, Sequence[dict[str, float]]], text: str, where: dict[str, Any], file: Path
) -> None:
    """``file`` with .json for every round, with .md to read."""
    record = {**where, "rounds": {"twostroke": runs["ours"], "aiperf": runs["theirs"]}}
    about = f"{environment_text(where)}- AIPerf {where['aiperf']}\n"
    write_record(file, "Two clients, one server", f"{about}\n{text}", record)


def run_client(command: Sequence[str], log: Path, **environment: str) -> None:
    """Run a client to its end, with its output in ``log``; ClientFailedError if it fails."""
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
            raise ClientFailedError(
                f"there is no {command[0]}; see the top of this file"
            ) from error
        except subprocess.SubprocessError as error:
            lines = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
            raise ClientFailedError(f"{command[0]}: {error}\n{lines}") from error


if __name__ == "__main__":
    sys.exit(cyclopts.run(main))
