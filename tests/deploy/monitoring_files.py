"""What ``deploy/`` asks of Prometheus: the expressions of its rules and dashboards."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from tests.server.running import ROOT

PROMETHEUS = ROOT / "deploy" / "prometheus"
GRAFANA = ROOT / "deploy" / "grafana"
DASHBOARDS = sorted(GRAFANA.glob("*.json"))
# What stands between an alert's values and limits.
COMPARISON = re.compile(r"\s+(?:==|>|<)\s+|\s+and ignoring \(window\)\s+")
NUMBER = re.compile(r"[0-9.]+")
METRIC = re.compile(r"(?<![\w:])(?:vllm|twostroke|model|model_target):[a-z0-9_:]+")


def rules(name: str) -> list[dict[str, Any]]:
    """The rules of a file, of all its groups."""
    content = yaml.safe_load((PROMETHEUS / name).read_text())
    return [rule for group in content["groups"] for rule in group["rules"]]


def recorded() -> list[str]:
    return [rule["record"] for rule in rules("recording.yml")]


def values_of_alerts() -> list[str]:
    """What alerts compare: an alert itself gives data only when it fires."""
    pieces = [piece for rule in rules("alerts.yml") for piece in COMPARISON.split(rule["expr"])]
    return [piece for piece in pieces if not NUMBER.fullmatch(piece)]


def panels(dashboard: Path) -> list[str]:
    content = json.loads(dashboard.read_text())
    return [target["expr"] for panel in content["panels"] for target in panel["targets"]]


def vllm_dashboard() -> list[str]:
    """What vLLM's own Grafana dashboard asks for, of each of its 13 panels.

    Source: examples/observability/prometheus_grafana/grafana.json in vllm-project/vllm, commit
    4b5c627c23e6690b8987100d1cbf78e34ac14bf9.
    """
    latencies = ("e2e_request_latency", "inter_token_latency", "time_to_first_token")
    quantile = "histogram_quantile({}, sum by(le) (rate(vllm:{}_seconds_bucket{}[{}])))"
    mean = "rate(vllm:{0}_seconds_sum{1}[{2}]) / rate(vllm:{0}_seconds_count{1}[{2}])"
    model, interval = '{model_name="$model_name"}', "$__rate_interval"
    rates = (
        *("prompt_tokens_total", "generation_tokens_total", "request_queue_time_seconds_sum"),
        *("request_prefill_time_seconds_sum", "request_decode_time_seconds_sum"),
        "request_max_num_generation_tokens_sum",
    )
    increases = (
        ("le", "request_prompt_tokens_bucket"),
        ("le", "request_generation_tokens_bucket"),
        ("finished_reason", "request_success_total"),
    )
    return [
        *(
            quantile.format(q, n, model, interval)
            for n in latencies
            for q in (0.99, 0.95, 0.9, 0.5)
        ),
        *(mean.format(name, model, interval) for name in latencies),
        *(f"rate(vllm:{name}{model}[{interval}])" for name in rates),
        *(f"sum by({by}) (increase(vllm:{name}{model}[{interval}]))" for by, name in increases),
        *(f"vllm:{name}{model}" for name in ("num_requests_running", "num_requests_waiting")),
        f"vllm:kv_cache_usage_perc{model}",
    ]


def vllm_statistics() -> list[str]:
    """What the two dashboards of vLLM's examples/observability/dashboards/grafana ask for.

    Those are performance_statistics (commit 5961e8d3bb355a0c2c90b94e537f919349238b46) and
    query_statistics (030ea52effcb05071543c8c42b8f0145e94cee43).
    """
    deployment, interval = '{model_name=~"$Deployment_id"}', "[$__rate_interval]"
    latencies = ("e2e_request_latency", "time_to_first_token", "inter_token_latency")
    lengths = ("request_prompt_tokens", "request_generation_tokens")
    success = f"rate(vllm:request_success_total{deployment}{interval})"
    quantile = "histogram_quantile({}, sum by(le, model_name) (rate(vllm:{}_bucket{}{})))"
    return [
        *(
            f"histogram_quantile({q}, sum by(le) (rate(vllm:{name}_seconds_bucket[$__range])))"
            for name in latencies
            for q in ("0.50", "0.90", "0.99")
        ),
        *(
            f"(sum(increase(vllm:{name}_seconds_sum[$__range]))"
            f" / sum(increase(vllm:{name}_seconds_count[$__range])))"
            for name in latencies
        ),
        *(
            f"rate(vllm:{name}{interval})"
            for name in (
                *("generation_tokens_total", "prompt_tokens_total"),
                "iteration_tokens_total_count",
            )
        ),
        *(f"sum by (model_name) ({success})", f"sum({success})"),
        *(
            quantile.format(q, name, deployment, interval)
            for name in (*lengths, "e2e_request_latency_seconds")
            for q in ("0.50", "0.90", "0.99")
        ),
        *(
            f"sum by (le, model_name) (rate(vllm:{name}_bucket{deployment}{interval}))"
            for name in lengths
        ),
        *(
            f"sum(rate(vllm:{name}{deployment}{interval}))\n/\nsum({success})"
            for name in ("prompt_tokens_total", "generation_tokens_total")
        ),
    ]


def all_expressions() -> list[str]:
    return [
        *(rule["expr"] for rule in rules("recording.yml")),
        *recorded(),
        *values_of_alerts(),
        *(expression for dashboard in DASHBOARDS for expression in panels(dashboard)),
        *vllm_dashboard(),
        *vllm_statistics(),
    ]


def in_short(text: str, model: str = "tiny") -> str:
    """With windows of seconds instead of minutes, and the variables of dashboards filled in."""
    for name, value in (
        *(("$__rate_interval", "10s"), ("$__range", "30s")),
        *(("$model_name", model), ("$Deployment_id", model), ("$tenant", ".*")),
    ):
        text = text.replace(name, value)
    text = text.replace("[5m]", "[10s]").replace("[1h]", "[30s]")
    text = re.sub(r"for: \d+m", "for: 1s", text)
    return re.sub(r"interval: 15s", "interval: 1s", text)
