"""Runs as JSON and CSV. Same runs, same bytes: no dates, no wall-clock times."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from twostroke.observability.latency import latency_fields, meets_targets
from twostroke.simulator.cost.told_sources import describe_sources
from twostroke.simulator.deployment.deployment import describe
from twostroke.simulator.results.run import Run
from twostroke.simulator.results.summary import RUN_LATENCIES, Summary

# Moments shown in a timeline.
TIMELINE_POINTS = 300
# What a request waits for, in words; keys are values of ``Reason``, and ``step``.
WAITS = {
    "step": "the step under way",
    "max_num_seqs": "--max-num-seqs",
    "no_free_block": "KV blocks",
    "token_budget": "--max-num-batched-tokens",
    "tpot_target": "--tpot-target",
    "batch_running": "the batch to end",
    "policy": "the policy",
    "prefill_chunk": "--max-prefill-chunk",
    "preempted": "KV blocks, preempted",
    "shares_prompt": "a prompt it shares",
    "loading": "a prefix to load",
}


def summary_fields(summary: Summary) -> dict[str, Any]:
    """The summary as plain values; names as in ``twostroke bench serve`` for the same meaning."""
    use = summary.use
    steady = summary.steady
    fields: dict[str, Any] = {
        "verdict": steady.verdict,
        "duration": summary.duration,
        "completed": summary.completed,
        "refused": summary.refused,
        "refused_early": summary.refused_early,
        "unfinished": summary.unfinished,
        "steps": summary.steps,
        "total_input_tokens": summary.input_tokens,
        "total_output_tokens": summary.output_tokens,
        "request_throughput": summary.request_throughput,
        "request_goodput": summary.goodput,
        "good_share": summary.good_share,
        "output_throughput": summary.output_throughput,
        "total_token_throughput": summary.total_throughput,
        "steady_start": steady.start,
        "steady_end": steady.end,
        "steady_request_throughput": steady.request_throughput,
        "steady_output_throughput": steady.output_throughput,
    }
    for key in RUN_LATENCIES:
        fields |= latency_fields(key, summary.latencies[key])
    return fields | {
        "by_priority": {
            str(priority): latency_fields("ttft", ttft)
            for priority, ttft in summary.ttft_by_priority.items()
        },
        "by_tenant": {
            str(tenant): latency_fields("ttft", ttft)
            for tenant, ttft in summary.ttft_by_tenant.items()
        },
        "waiting_for": summary.waiting_for,
        "prefix_hit_rate": summary.prefix_hit_rate,
        "preemptions": summary.preemptions,
        **summary.drafts.fields(),
        "busy": use.busy,
        "mfu": use.mfu,
        "mbu": use.mbu,
        "kv_mean": use.kv_mean,
        "kv_peak": use.kv_peak,
        "batch_mean": use.batch_mean,
        "binding": use.binding,
        "replicas_mean": summary.replicas_mean,
        "replicas_most": summary.replicas_most,
        "replicas_started": summary.started,
        "dollars": summary.dollars,
        "dollars_per_million_tokens": summary.dollars_per_million_tokens,
        "dollars_per_million_output_tokens": summary.dollars_per_million_output_tokens,
        "watt_hours": summary.watt_hours,
    }


def _fleet_fields(summary: Summary) -> dict[str, Any]:
    """What there is to say of pools, and of replicas that died; nothing without either."""
    fields: dict[str, Any] = {}
    if summary.moved:
        fields["moved"] = summary.moved
    if not summary.pools:
        return fields
    return {
        **fields,
        "handed_on": summary.handed_on,
        "pools": [
            {
                "role": pool.role,
                "description": pool.description,
                "times_from": pool.times_from,
                "replicas": pool.replicas,
                "busy": pool.use.busy,
                "mfu": pool.use.mfu,
                "mbu": pool.use.mbu,
                "kv_mean": pool.use.kv_mean,
                "kv_peak": pool.use.kv_peak,
                "batch_mean": pool.use.batch_mean,
                "binding": pool.use.binding,
                "dollars": pool.dollars,
            }
            for pool in summary.pools
        ],
    }


def describe_run(run: Run) -> str:
    """Which model, in which formats, on what; of two pools each, and how busy it was."""
    pools = run.summary.pools
    if not pools:
        return describe(run.deployment, run.scenario.deployment)
    return "; ".join(f"{pool.role}: {pool.description}, busy {pool.use.busy:.0%}" for pool in pools)


def describe_times(run: Run) -> str:
    """What step times were fitted to; of two pools each, where they differ."""
    pools = run.summary.pools
    if len({pool.times_from for pool in pools}) < 2:
        return describe_sources(run.deployment.cost)
    return "; ".join(f"of {pool.role}, {pool.times_from}" for pool in pools)


def run_fields(run: Run) -> dict[str, Any]:
    """One run for a file: setting, deployment, summary, timeline."""
    deployment, hardware, model = run.deployment, run.deployment.hardware, run.deployment.model
    return {
        "label": run.scenario.label,
        "setting": {**run.scenario.setting(), "replicas": run.scenario.num_replicas},
        "targets": dict(run.scenario.targets),
        "notes": list(run.notes),
        "interrupted": run.result.interrupted,
        "hardware": {
            "name": hardware.name,
            "title": hardware.title,
            "memory_bytes": hardware.memory_bytes,
            "memory_bandwidth": hardware.memory_bandwidth,
            "dense_flops": dict(hardware.dense_flops),
            "price_per_hour": hardware.price_per_hour,
        },
        "description": describe_run(run),
        "deployment": {
            "parameters": model.num_parameters,
            "active_parameters": model.active_parameters,
            "weight_bytes_per_device": deployment.weight_bytes,
            "kv_bytes_per_device": deployment.kv_bytes,
            "kv_bytes_per_token_and_device": deployment.info.kv_bytes_per_token,
            **(
                {"state_bytes_per_device": deployment.state_bytes} if deployment.state_bytes else {}
            ),
            "num_blocks": deployment.info.num_blocks,
            "max_model_len": deployment.max_model_len,
            "times_from": describe_times(run),
        },
        **summary_fields(run.summary),
        **_fleet_fields(run.summary),
        "interval": {bound: summary_fields(summary) for bound, summary in run.interval.items()},
        "scaling": [
            {"time": event.time, "before": event.before, "wanted": event.wanted}
            for event in run.result.scaling
        ],
        "timeline": timeline(run),
    }


def timeline(run: Run) -> dict[str, list[float]]:
    """The state of the whole fleet at evenly spaced moments.

    ``time`` in seconds; ``running`` and ``waiting`` requests; ``kv``: share of all blocks in use;
    ``tokens_per_second``: prompt and output tokens computed since the moment before.
    """
    columns, total = run.columns, run.result.total_blocks
    end = run.summary.duration
    times = np.linspace(0, end, TIMELINE_POINTS + 1)[1:] if end else np.zeros(0)
    running, waiting, used = (np.zeros(len(times)) for _ in range(3))
    tokens = np.zeros(len(times))
    for number in range(len(columns.first)):
        steps = columns.replica(number)
        ends = columns.end[steps]
        if not len(ends) or not len(times):
            continue
        last = np.searchsorted(ends, times, side="right") - 1
        begun = last >= 0
        running += np.where(begun, columns.running[steps][last], 0)
        waiting += np.where(begun, columns.waiting[steps][last], 0)
        used += np.where(begun, run.result.blocks[number] - columns.free_blocks[steps][last], 0)
        computed = np.concatenate(
            [[0], np.cumsum(columns.prefill_tokens[steps] + columns.new_tokens[steps])]
        )
        tokens += np.diff(computed[last + 1], prepend=0)
    rate = tokens / (end / len(times)) if len(times) else tokens
    return {
        "time": times.tolist(),
        "running": running.tolist(),
        "waiting": waiting.tolist(),
        "kv": (used / max(1, total) if run.deployment.kv_bytes else np.zeros(len(used))).tolist(),
        "tokens_per_second": rate.tolist(),
    }


def report_json(runs: Sequence[Mapping[str, Any]]) -> str:
    """One object with all runs."""
    return json.dumps({"runs": list(runs)}, indent=1, allow_nan=False) + "\n"


def requests_csv(runs: Sequence[Run]) -> str:
    """One row per finished request of each run; times in seconds."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = ["number", "replica", "arrival", "scheduled", "first_token", "finish"]
    names += [
        "prompt_tokens",
        "output_tokens",
        "cached_tokens",
        "preemptions",
        "priority",
        "tenant",
        "ttft",
        "tpot",
        "e2el",
    ]
    writer.writerow(("run", *names, "good"))
    for run in runs:
        for request in run.result.requests:
            good = int(meets_targets(request, run.scenario.targets))
            writer.writerow((run.scenario.label, *(getattr(request, name) for name in names), good))
    return text.getvalue()
