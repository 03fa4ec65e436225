"""Goodput of a real server at 0.5 to 10 times its capacity, and whether it counts as its client.

    python -m benchmarks.overload.live --model 10m --server-cores 0 --client-cores 1

As ``benchmarks.overload.simulated``, over HTTP with ``bench serve`` as the client. By default both
share the machine's cores, and above its capacity the server also loses what its client costs. With
``--server-cores`` and ``--client-cores`` each process keeps to its own, at every load, so that the
peak is measured like the rest.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cyclopts
import httpx

from benchmarks.environment import OtherPrograms, environment, wrapped, write_record
from benchmarks.make_checkpoint import SIZES
from benchmarks.make_checkpoint import main as make_checkpoint
from benchmarks.overload.report import JUDGED, LOADS, Cell, overload_text, verdict
from benchmarks.overload.simulated import RESULTS
from benchmarks.server import running_server, running_workers
from twostroke.observability.latency import percentile

MODES: dict[str, tuple[str, ...]] = {
    "fcfs": ("--policy", "fcfs"),
    JUDGED: ("--policy", "deadline", "--admission", "predicted"),
}


@dataclass(frozen=True, slots=True)
class Client:
    """The workload, whatever the rate."""

    input_len: int
    output_len: int
    folder: Path
    cores: tuple[int, ...]
    command: Sequence[str] = field(default=(sys.executable, "-m", "twostroke", "bench", "serve"))

    def run(self, url: str, num_prompts: int, rate: float, seed: int) -> Mapping[str, Any]:
        """One run; its report."""
        path = self.folder / "run.json"
        path.unlink(missing_ok=True)
        flags = ["--base-url", url, "--num-prompts", str(num_prompts), "--seed", str(seed)]
        flags += ["--random-input-len", str(self.input_len), "--random-range-ratio", "0.5"]
        flags += ["--random-output-len", str(self.output_len), "--ignore-eos"]
        flags += ["--request-rate", str(rate), "--num-warmups", "0", "--output-json", str(path)]
        output = subprocess.DEVNULL
        with pinned(self.cores):
            subprocess.run([*self.command, *flags], check=False, stdout=output, stderr=output)
        report: Mapping[str, Any] = json.loads(path.read_text())
        return report


@contextmanager
def pinned(cores: Sequence[int]) -> Iterator[None]:
    """Processes that start meanwhile run on these cores alone; on all if there are none."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores or before)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def main(
    *,
    model: str = "10m",
    target: float = 1.0,
    seconds: float = 30.0,
    loads: tuple[float, ...] = LOADS,
    input_len: int = 256,
    output_len: int = 64,
    threads: int = 1,
    server_cores: tuple[int, ...] = (),
    client_cores: tuple[int, ...] = (),
    modes: tuple[str, ...] = tuple(MODES),
    workers: int = 0,
    out: Path = RESULTS,
) -> int:
    """Measure a server at all loads, first come first served and with deadlines and refusal.

    Args:
        model: An embedded model, a folder, or 10m or 350m for a random checkpoint of that size.
        target: Seconds of TTFT.
        seconds: For how long requests arrive in each run.
        loads: Times the capacity.
        input_len: Tokens of a prompt, on average; they spread evenly by half to either side.
        output_len: Of an answer, likewise.
        threads: Of the server's computations; it should leave a core to the client.
        server_cores: Numbers of the cores that the server keeps to; by default it has all.
        client_cores: Likewise for the client.
        modes: Which to measure; the last of all is judged.
        workers: Measure a router before so many workers, which have ``threads`` each.
        out: Folder for the record.

    Returns:
        0 if goodput above the capacity is at least 0.9 of its peak, and P95 of TTFT in time.
    """
    others = OtherPrograms()
    cells, differences = [], []
    with tempfile.TemporaryDirectory(prefix="twostroke-overload-") as name:
        folder = Path(name)
        served = model
        if model in SIZES:
            served = str(folder / model)
            make_checkpoint(model, served)
        client = Client(input_len, output_len, folder, client_cores)
        flags = ("--no-enable-prefix-caching", "--target", f"ttft=p95:{target}")
        variables = {"OMP_NUM_THREADS": str(threads)}
        capacity = 0.0
        for mode in modes:
            log, chosen = folder / "server.log", (*flags, *MODES[mode])
            roles = ("both",) * workers
            with (
                pinned(server_cores),
                running_workers(served, log, roles, *chosen, threads=threads)
                if workers
                else running_server(served, log, *chosen, environment=variables) as server,
            ):
                client.run(server.url, 32, float("inf"), 0)  # to warm up
                if not capacity:
                    capacity = float(
                        client.run(server.url, 300, float("inf"), 1)["request_throughput"]
                    )
                for number, load in enumerate(loads):
                    before = _good_by_server(server.url)
                    count = max(10, round(load * capacity * seconds))
                    report = client.run(server.url, count, load * capacity, 2 + number)
                    cells.append(_cell(mode, load, report, target))
                    seen = _good_by_server(server.url) - before
                    differences.append(abs(seen - cells[-1].good) / cells[-1].sent)
                    print(cells[-1], f"by the server {seen:.0f}", file=sys.stderr, flush=True)
    command = (
        f"python -m benchmarks.overload.live --model {model} --seconds {seconds:g}"
        f" --output-len {output_len}{_repeated('loads', loads)}"
        f"{_repeated('server-cores', server_cores)}{_repeated('client-cores', client_cores)}"
        f"{_repeated('modes', modes if modes != tuple(MODES) else ())}"
        f"{f' --target {target:g}' if target != 1 else ''}"
        f"{f' --workers {workers}' if workers else ''}"
    )
    record = {
        "model": model,
        "capacity": capacity,
        "target_ttft": target,
        "seconds": seconds,
        "input_len": input_len,
        "output_len": output_len,
        "workers": workers,
        "server_cores": server_cores,
        "client_cores": client_cores,
        "cells": [cell.fields() for cell in cells],
        "client_and_server_differ": differences,
        "environment": environment(command, others.share()),
    }
    text = overload_text(record, cells)
    text += (
        "\nWhat the client and the server's own target count as good differs by"
        f" {max(differences):.1%} of the requests sent at most.\n"
    )
    if server_cores and client_cores:
        text += (
            f"\nThe server kept to {_cores(server_cores)}, the client to {_cores(client_cores)}, at"
            " every load and for the capacity.\n"
        )
    text = wrapped(text)
    print(text)
    if workers:
        text += f"\nBehind `twostroke route`: {workers} workers, {threads} thread each.\n"
    kind = "live_pinned" if server_cores and client_cores else "live"
    kind = f"{kind}_routed" if workers else kind
    write_record(out / f"overload_{kind}_{model}", f"Overload, live: {model}", text, record)
    return verdict(cells, target)


def _repeated(flag: str, values: Sequence[object]) -> str:
    return "".join(f" --{flag} {shlex.quote(str(value))}" for value in values)


def _cores(cores: Sequence[int]) -> str:
    return f"core{'s' * (len(cores) > 1)} {', '.join(map(str, cores))}"


def _cell(mode: str, load: float, report: Mapping[str, Any], target: float) -> Cell:
    errors, ttfts = report["errors"], report["ttfts"]
    answered = sorted(ttft for ttft, error in zip(ttfts, errors) if error is None)
    refused = sum(error is not None and "429" in error for error in errors)
    good = sum(ttft <= target for ttft in answered)
    return Cell(
        mode=mode,
        load=load,
        sent=len(errors),
        good=good,
        late=len(answered) - good,
        refused=refused,
        failed=len(errors) - len(answered) - refused,
        seconds=max(report["start_times"]),
        ttft_p95=percentile(answered, 95),
        ttft_p99=percentile(answered, 99),
    )


def _good_by_server(url: str) -> float:
    """Requests within the TTFT target since the server began, as its own target counts them."""
    reports = httpx.get(f"{url}/v1/targets", trust_env=False).json()["data"]
    each = [report for report in reports if report["metric"] == "ttft"]  # of each worker one
    return float(sum(one["total_observations"] - one["total_misses"] for one in each))


if __name__ == "__main__":
    cyclopts.run(main)
