"""One run as tables on a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TextIO

from twostroke.observability.latency import latency_rows
from twostroke.observability.tables import print_table
from twostroke.simulator.reports.fields import WAITS, describe_run, describe_times
from twostroke.simulator.results.run import Run
from twostroke.simulator.results.summary import RUN_LATENCIES, Summary

# Tenants that the terminal shows, the busiest first; the JSON has all.
MAX_TENANTS = 10


def print_run(run: Run, stream: TextIO) -> None:
    """What ran on which devices; counts, throughput and utilisation; latencies."""
    summary = run.summary
    print(summary.steady.describe(), file=stream)
    print(describe_run(run), file=stream)
    print(f"Times: {describe_times(run)}", file=stream)
    if not run.interval:
        ends = run.deployment.cost.interval
        of_prompts = summary.pools[0].interval if summary.pools else ends
        print(
            f"Interval: decode steps take {ends.decode_low:.2f} to {ends.decode_high:.2f} of the"
            f" estimate, those with prompts {of_prompts.prefill_low:.2f} to"
            f" {of_prompts.prefill_high:.2f} (8 of 10); --interval shows what follows",
            file=stream,
        )
    print_table(("", ""), _count_rows(run), stream)
    if summary.pools:
        print_table(*_pool_rows(summary), stream)
    latencies = {title: summary.latencies[key] for key, title in RUN_LATENCIES.items()}
    for priority, ttft in summary.ttft_by_priority.items():
        latencies[f"TTFT, priority {priority}"] = ttft
    for tenant, ttft in list(summary.ttft_by_tenant.items())[:MAX_TENANTS]:
        latencies[f"TTFT, tenant {tenant}"] = ttft
    print_table(*latency_rows(latencies), stream)
    if run.interval:
        header = ("median, by estimate of steps", "low", "point", "high")
        summaries = (run.interval["low"], summary, run.interval["high"])
        print_table(header, _interval_rows(summaries), stream)


def _count_rows(run: Run) -> list[tuple[str, str]]:
    summary, use = run.summary, run.summary.use
    waits = _shares({WAITS[name]: share for name, share in summary.waiting_for.items()})
    rows = [
        ("Completed requests", f"{summary.completed}"),
        ("Simulated duration (s)", f"{summary.duration:.2f}"),
        ("Total input tokens", f"{summary.input_tokens}"),
        ("Total generated tokens", f"{summary.output_tokens}"),
        *_steady_rows(summary),
        ("Request throughput (req/s)", f"{summary.request_throughput:.2f}"),
        *_goodput_rows(summary),
        ("Output token throughput (tok/s)", f"{summary.output_throughput:.2f}"),
        ("Total token throughput (tok/s)", f"{summary.total_throughput:.2f}"),
        ("Prefix cache hit rate", f"{summary.prefix_hit_rate:.1%}"),
        ("Preemptions", f"{summary.preemptions}"),
        *summary.drafts.rows(),
        ("Time with a step running", f"{use.busy:.1%}"),
        ("MFU, MBU while it runs", f"{use.mfu:.1%}, {use.mbu:.1%}"),
        ("KV cache, mean and peak", f"{use.kv_mean:.1%}, {use.kv_peak:.1%}"),
        *_scaling_rows(run),
        *_fleet_rows(run),
        ("Steps wait mostly for", _shares(use.binding)),
        ("Requests wait mostly for", waits or "none waits"),
        ("Cost per million tokens ($)", f"{summary.dollars_per_million_tokens:.3f}"),
    ]
    if not run.deployment.kv_bytes:
        rows = [row for row in rows if row[0] != "KV cache, mean and peak"]
    for name, count in (
        ("Refused requests (too long)", summary.refused),
        ("Refused requests (late)", summary.refused_early),
        ("Unfinished requests", summary.unfinished),
    ):
        if count:
            rows.insert(1, (name, f"{count}"))
    return rows


def _pool_rows(summary: Summary) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Each pool's part."""
    uses = [pool.use for pool in summary.pools]
    rows = [
        ("Replicas", *(f"{pool.replicas}" for pool in summary.pools)),
        ("Time with a step running", *(f"{use.busy:.1%}" for use in uses)),
        ("MFU while it runs", *(f"{use.mfu:.1%}" for use in uses)),
        ("MBU while it runs", *(f"{use.mbu:.1%}" for use in uses)),
        ("Requests per step", *(f"{use.batch_mean:.1f}" for use in uses)),
        ("KV cache, mean", *(f"{use.kv_mean:.1%}" for use in uses)),
        ("KV cache, peak", *(f"{use.kv_peak:.1%}" for use in uses)),
        ("Steps wait mostly for", *(_shares(use.binding) for use in uses)),
        ("Cost ($)", *(f"{pool.dollars:.2f}" for pool in summary.pools)),
    ]
    return ("pool", *(pool.role for pool in summary.pools)), rows


def _fleet_rows(run: Run) -> list[tuple[str, str]]:
    """What moved between replicas, where some does."""
    summary, rows = run.summary, []
    if summary.pools:
        rows.append(("Prompts computed apart", f"{summary.handed_on}"))
    if run.scenario.fleet.fail:
        rows.append(("Requests that went on elsewhere", f"{summary.moved}"))
        rows.append(("Replicas that came back", f"{summary.started}"))
    return rows


def _steady_rows(summary: Summary) -> list[tuple[str, str]]:
    """What the deployment sustains, if there is a steady window."""
    steady = summary.steady
    if not steady.seconds:
        return []
    parts = (steady.start, steady.seconds, summary.duration - steady.end)
    return [
        ("Ramp, steady window, drain (s)", ", ".join(f"{seconds:.2f}" for seconds in parts)),
        ("Steady throughput (req/s)", f"{steady.request_throughput:.2f}"),
        ("Steady output throughput (tok/s)", f"{steady.output_throughput:.2f}"),
    ]


def _scaling_rows(run: Run) -> list[tuple[str, str]]:
    """How the pool changed, if it may."""
    if run.scenario.scaling.autoscale is None:
        return []
    summary = run.summary
    counts = f"{summary.replicas_mean:.2f}, {summary.replicas_most}"
    return [
        ("Replicas, mean and most", counts),
        ("Replicas started", f"{summary.started}"),
    ]


def _goodput_rows(summary: Summary) -> list[tuple[str, str]]:
    if summary.goodput is None:
        return []
    good = f"{summary.goodput:.2f} ({summary.good_share or 0:.1%})"
    return [("Request goodput (req/s)", good)]


def _interval_rows(ends: tuple[Summary, Summary, Summary]) -> list[tuple[str, ...]]:
    rows = [
        (f"{title} (ms)", *(f"{1000 * end.latencies[key].percentiles[50]:.2f}" for end in ends))
        for key, title in RUN_LATENCIES.items()
    ]
    return [*rows, ("Output tok/s", *(f"{end.output_throughput:.1f}" for end in ends))]


def _shares(shares: Mapping[str, float]) -> str:
    ordered = sorted(shares.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{name} {share:.0%}" for name, share in ordered if share >= 0.005)
