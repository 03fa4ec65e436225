"""What the live server's ``/metrics`` would say at the end of a simulation: the same names, labels
and buckets.

The live engine counts token by token. A run of steps gives thousands of tokens at once, so here the
counts are made of the log's columns; ``tests/simulator/results/test_summary.py`` compares both.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from twostroke.core.request import FinishReason
from twostroke.observability import metrics
from twostroke.observability.metrics import EngineMetrics
from twostroke.simulator.fleet.fleet import RequestResult
from twostroke.simulator.results.run import Run

Values = npt.NDArray[np.float64]
Weights = npt.NDArray[np.int64]


def render_metrics(run: Run) -> str:
    """The exposition text of the whole fleet, as if one engine had done it all."""
    registry = CollectorRegistry()
    registry.register(_Filled(run))
    return generate_latest(registry).decode()


class _Filled(Collector):
    """The live engine's metrics, in its order, with a simulation's values. Gauges are those of an
    empty engine.
    """

    def __init__(self, run: Run) -> None:
        self._model = run.scenario.deployment.model
        self._labels = [self._model, metrics.ENGINE]
        self._live = EngineMetrics(self._model)
        caching = run.scenario.cache.enable_prefix_caching
        self._live.describe_cache(
            run.result.total_blocks, run.result.block_size, prefix_caching=caching
        )
        self._counters = _counters(run)
        self._histograms = _histograms(run)

    def collect(self) -> Iterable[Metric]:
        for family in self._live.registry.collect():
            if family.name in self._counters:
                counter = CounterMetricFamily(
                    family.name, family.documentation, labels=metrics.LABELS
                )
                counter.add_metric(self._labels, self._counters[family.name])
                yield counter
            elif family.name in self._histograms:
                yield self._histogram(family)
            elif family.name == "vllm:request_success":
                yield self._success(family)
            else:
                yield family

    def _histogram(self, family: Metric) -> HistogramMetricFamily:
        edges, values, weights = self._histograms[family.name]
        # An edge belongs to its bucket: "le".
        places = np.searchsorted(np.array(edges), values, side="left")
        counts = (
            np.bincount(places, weights=weights, minlength=len(edges) + 1).astype(np.int64).cumsum()
        )
        buckets = [(str(float(edge)), float(count)) for edge, count in zip(edges, counts)]
        filled = HistogramMetricFamily(family.name, family.documentation, labels=metrics.LABELS)
        total = float((values * weights).sum())
        filled.add_metric(self._labels, [*buckets, ("+Inf", float(counts[-1]))], total)
        return filled

    def _success(self, family: Metric) -> CounterMetricFamily:
        filled = CounterMetricFamily(
            family.name, family.documentation, labels=[*metrics.LABELS, "finished_reason"]
        )
        for reason in FinishReason:
            count = self._counters["finished"] if reason is FinishReason.LENGTH else 0.0
            filled.add_metric([*self._labels, reason.value], count)
        return filled


def _counters(run: Run) -> dict[str, float]:
    requests, columns = run.result.requests, run.columns
    return {
        "vllm:prefix_cache_queries": float(run.result.prefix_queries),
        "vllm:prefix_cache_hits": float(run.result.prefix_hits),
        "vllm:num_preemptions": float(run.result.num_preemptions),
        "vllm:prompt_tokens": float(sum(request.prompt_tokens for request in requests)),
        "vllm:generation_tokens": float(columns.new_tokens.sum()),
        "finished": float(len(requests)),
    }


def _histograms(run: Run) -> dict[str, tuple[Sequence[float], Values, Weights]]:
    requests, columns = run.result.requests, run.columns
    ones = np.ones(len(columns.start), dtype=np.int64)
    tokens = (columns.prefill_tokens + columns.decode_requests).astype(np.float64)
    gaps = np.concatenate([columns.duration, columns.other_gaps])
    gap_counts = np.concatenate([columns.gaps, np.ones(len(columns.other_gaps), dtype=np.int64)])
    several = [request for request in requests if request.output_tokens > 1]
    return {
        "vllm:iteration_tokens_total": (metrics.STEP_TOKENS_BUCKETS, tokens, ones),
        "twostroke:step_duration_seconds": (metrics.STEP_SECONDS_BUCKETS, columns.duration, ones),
        "vllm:inter_token_latency_seconds": (metrics.TOKEN_GAP_BUCKETS, gaps, gap_counts),
        **_of_requests(
            "vllm:time_to_first_token_seconds", metrics.TTFT_BUCKETS, [r.ttft for r in requests]
        ),
        **_of_requests(
            "vllm:request_time_per_output_token_seconds",
            metrics.TOKEN_GAP_BUCKETS,
            [r.tpot for r in several],
        ),
        **_of_requests(
            "vllm:e2e_request_latency_seconds", metrics.REQUEST_BUCKETS, [r.e2el for r in requests]
        ),
        **_phases(requests),
        **_lengths(requests),
    }


def _phases(
    requests: Sequence[RequestResult],
) -> dict[str, tuple[Sequence[float], Values, Weights]]:
    edges = metrics.REQUEST_BUCKETS
    return {
        **_of_requests(
            "vllm:request_queue_time_seconds", edges, [r.scheduled - r.arrival for r in requests]
        ),
        **_of_requests(
            "vllm:request_prefill_time_seconds",
            edges,
            [r.first_token - r.scheduled for r in requests],
        ),
        **_of_requests(
            "vllm:request_inference_time_seconds", edges, [r.finish - r.scheduled for r in requests]
        ),
        **_of_requests(
            "vllm:request_decode_time_seconds", edges, [r.finish - r.first_token for r in requests]
        ),
    }


def _lengths(
    requests: Sequence[RequestResult],
) -> dict[str, tuple[Sequence[float], Values, Weights]]:
    """A simulated request gets all the tokens that it asks for."""
    edges, outputs = metrics.REQUEST_TOKENS_BUCKETS, [r.output_tokens for r in requests]
    return {
        **_of_requests("vllm:request_prompt_tokens", edges, [r.prompt_tokens for r in requests]),
        **_of_requests("vllm:request_generation_tokens", edges, outputs),
        **_of_requests("vllm:request_params_max_tokens", edges, outputs),
        **_of_requests("vllm:request_max_num_generation_tokens", edges, outputs),
        **_of_requests("vllm:request_params_n", metrics.SAMPLES_BUCKETS, [1] * len(outputs)),
    }


def _of_requests(
    name: str, edges: Sequence[float], values: Sequence[float]
) -> dict[str, tuple[Sequence[float], Values, Weights]]:
    return {name: (edges, np.array(values, dtype=np.float64), np.ones(len(values), dtype=np.int64))}
