"""Results as a table for people and as JSON for programs, under the names of `vllm bench serve`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import msgspec

from twostroke.bench.metrics import RequestRecord, ServeMetrics
from twostroke.bench.offline import OfflineResult
from twostroke.bench.server_verdict import ServerVerdict
from twostroke.core.errors import ConfigError
from twostroke.core.files import reason, write_text
from twostroke.observability.draft_counts import DraftCounts
from twostroke.observability.latency import (
    LATENCIES,
    LatencyDistribution,
    latency_fields,
    latency_rows,
)
from twostroke.observability.profile import COMPONENTS
from twostroke.observability.tables import print_table

# Kinds of failures that are told apart on the terminal; the JSON has them all.
MAX_ERRORS = 5


def print_serve_report(
    metrics: ServeMetrics, stream: TextIO, verdicts: Sequence[ServerVerdict] = ()
) -> None:
    """Two tables: counts and throughput, then latencies. A third with the server's own targets."""
    counts: list[tuple[str, str]] = [
        ("Successful requests", f"{metrics.completed}"),
        ("Failed requests", f"{metrics.failed}"),
        ("Benchmark duration (s)", f"{metrics.duration:.2f}"),
        ("Total input tokens", f"{metrics.input_tokens}"),
        ("Total generated tokens", f"{metrics.output_tokens}"),
        ("Request throughput (req/s)", f"{metrics.request_throughput:.2f}"),
        ("Output token throughput (tok/s)", f"{metrics.output_throughput:.2f}"),
        ("Total token throughput (tok/s)", f"{metrics.total_token_throughput:.2f}"),
    ]
    if metrics.goodput is not None:
        counts.insert(6, ("Request goodput (req/s)", f"{metrics.goodput:.2f}"))
    counts += DraftCounts(metrics.accepted, metrics.rejected, metrics.output_tokens).rows()
    print_table(("", ""), counts, stream)
    print_table(
        *latency_rows({name: getattr(metrics, key) for key, name in LATENCIES.items()}), stream
    )
    if verdicts:
        header = ("Targets of the server", "counted", "good", "good here")
        rows = [(v.target, f"{v.observations}", f"{v.good}", f"{v.good_here}") for v in verdicts]
        print_table(header, rows, stream)


def print_offline_report(result: OfflineResult, stream: TextIO) -> None:
    """Counts and throughput, then how long steps took."""
    counts = [
        ("Requests", f"{result.num_requests}"),
        ("Duration (s)", f"{result.duration:.2f}"),
        ("Total input tokens", f"{result.input_tokens}"),
        ("Total generated tokens", f"{result.output_tokens}"),
        ("Request throughput (req/s)", f"{result.num_requests / result.duration:.2f}"),
        ("Output token throughput (tok/s)", f"{result.output_tokens / result.duration:.2f}"),
        (
            "Total token throughput (tok/s)",
            f"{(result.input_tokens + result.output_tokens) / result.duration:.2f}",
        ),
        ("Steps with prompt tokens", f"{len(result.prefill_steps)}"),
        ("Steps that only decode", f"{len(result.decode_steps)}"),
        *DraftCounts(result.accepted, result.rejected, result.output_tokens).rows(),
    ]
    print_table(("", ""), counts, stream)
    print_table(
        *latency_rows(
            {name: LatencyDistribution.of(steps) for name, steps in _steps(result).items()}
        ),
        stream,
    )


def print_profile(result: OfflineResult, stream: TextIO) -> None:
    """Milliseconds a step and share of it, by component, for each kind of step."""
    kinds = [
        (name, len(steps), profile)
        for name, steps, profile in (
            ("prefill step", result.prefill_steps, result.prefill_profile),
            ("decode step", result.decode_steps, result.decode_profile),
        )
        if steps
    ]
    rows = []
    for component in (*COMPONENTS, "all"):
        row = [component]
        for _, count, profile in kinds:
            seconds = profile.total() if component == "all" else profile[component]
            row += [f"{1000 * seconds / count:.3f}", f"{seconds / profile.total():.1%}"]
        rows.append(tuple(row))
    print_table(("ms", *(cell for name, _, _ in kinds for cell in (name, "share"))), rows, stream)


def offline_report(result: OfflineResult, setting: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that a file holds of a run.

    These are the setting, the metrics (step times in ms), and each step (seconds).
    """
    report: dict[str, Any] = {
        **setting,
        "num_requests": result.num_requests,
        "duration": result.duration,
        "total_input_tokens": result.input_tokens,
        "total_output_tokens": result.output_tokens,
        "output_throughput": result.output_tokens / result.duration,
        "total_token_throughput": (result.input_tokens + result.output_tokens) / result.duration,
    }
    report |= DraftCounts(result.accepted, result.rejected, result.output_tokens).fields()
    for name, steps in _steps(result).items():
        report |= latency_fields(name.replace(" ", "_"), LatencyDistribution.of(steps))
    if result.prefill_profile:
        report["components"] = {
            "prefill_steps": result.prefill_profile,
            "decode_steps": result.decode_profile,
        }
    return report | {"prefill_steps": result.prefill_steps, "decode_steps": result.decode_steps}


def _steps(result: OfflineResult) -> dict[str, list[float]]:
    every = result.prefill_steps + result.decode_steps
    return {"step": every, "prefill step": result.prefill_steps, "decode step": result.decode_steps}


def describe_failures(records: Sequence[RequestRecord]) -> list[str]:
    """``3 x HTTP 429: ...``, the most frequent first."""
    counts = Counter(record.error for record in records if record.error is not None)
    return [f"{count} x {error}" for error, count in counts.most_common(MAX_ERRORS)]


def serve_report(
    metrics: ServeMetrics,
    records: Sequence[RequestRecord],
    setting: Mapping[str, Any],
    verdicts: Sequence[ServerVerdict] = (),
) -> dict[str, Any]:
    """Everything that a file holds of a run.

    These are the setting, the metrics (latencies in ms), and each request (seconds).
    """
    report: dict[str, Any] = {
        **setting,
        "duration": metrics.duration,
        "completed": metrics.completed,
        "failed": metrics.failed,
        "total_input_tokens": metrics.input_tokens,
        "total_output_tokens": metrics.output_tokens,
        "request_throughput": metrics.request_throughput,
        "request_goodput": metrics.goodput,
        "output_throughput": metrics.output_throughput,
        "total_token_throughput": metrics.total_token_throughput,
    }
    report |= DraftCounts(metrics.accepted, metrics.rejected, metrics.output_tokens).fields()
    for key in LATENCIES:
        report |= latency_fields(key, getattr(metrics, key))
    report["server_targets"] = [msgspec.structs.asdict(verdict) for verdict in verdicts]
    return report | {
        "start_times": [record.sent for record in records],
        "input_lens": [record.input_len for record in records],
        "output_lens": [record.output_len for record in records],
        "ttfts": [record.ttft for record in records],
        "itls": [record.itls for record in records],
        "e2els": [record.e2el for record in records],
        "errors": [record.error for record in records],
    }


def write_json(path: Path, report: Mapping[str, Any]) -> None:
    """One object. Infinity, as a request rate, is written as text: JSON has none.

    Raises:
        ConfigError: The file cannot be written.
    """
    safe = {key: str(value) if value == float("inf") else value for key, value in report.items()}
    try:
        write_text(path, json.dumps(safe, indent=1, default=str) + "\n")
    except OSError as error:
        raise ConfigError(
            f"cannot write {path}: {reason(error)}", hint="give another --output-json"
        ) from error
