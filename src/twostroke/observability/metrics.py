"""Prometheus metrics of one engine, under vLLM's names, so that dashboards made for vLLM work here.

Bucket edges are those of vLLM's ``v1/metrics/loggers.py``. What twostroke adds is called
``twostroke:...``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from twostroke.core.config import CacheConfig
from twostroke.core.kv_groups import ONE_GROUP, KVGroups
from twostroke.core.output import RequestOutput
from twostroke.core.request import FinishReason, Request
from twostroke.core.step import Reason
from twostroke.observability.events import SchedulerStats
from twostroke.observability.histogram import BulkHistogram
from twostroke.observability.load_gauges import LoadGauges
from twostroke.observability.observer import ObservedStep
from twostroke.observability.speculation_metrics import SpeculationMetrics
from twostroke.observability.state_metrics import StateMetrics
from twostroke.observability.targets.exposition import TargetSeries
from twostroke.observability.targets.observer import TargetObserver
from twostroke.observability.tier_metrics import TierMetrics

# The library's own constant names a newer version of the format in its later releases.
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

TTFT_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
TOKEN_GAP_BUCKETS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
REQUEST_BUCKETS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0),
    *(40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
# vLLM ends this row at the model's length.
REQUEST_TOKENS_BUCKETS = tuple(digit * 10**power for power in range(6) for digit in (1, 2, 5))
SAMPLES_BUCKETS = (1, 2, 5, 10, 20)
PREEMPTIONS_BUCKETS = (1, 2, 3, 4, 5, 10, 20)
STEP_TOKENS_BUCKETS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
STEP_SECONDS_BUCKETS = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
)


LABELS = ("model_name", "engine")


class EngineMetrics:
    """All metrics of one engine, in a registry of its own: two engines in a process do not meet.

    An observer of the engine, whose thread calls everything.

    Args:
        rank: vLLM's number of the data-parallel rank, or a worker's address.

    Attributes:
        labels: Names and values of those that all metrics have.
        registry: All of them: gauges of the load, then ``counts``.
        stats: The scheduler's state after the latest step, arrival or abort.
    """

    def __init__(
        self,
        model_name: str,
        read_stats: Callable[[], SchedulerStats] = SchedulerStats,
        rank: int | str = 0,
    ) -> None:
        self.labels = dict(zip(LABELS, (model_name, str(rank))))
        self.counts = CollectorRegistry()
        self.registry = CollectorRegistry()
        self.registry.register(LoadGauges(self.labels, lambda: self.stats))
        self.registry.register(self.counts)
        self.stats = read_stats()
        self._read_stats = read_stats
        self._model_name = model_name
        self._last_token_time: dict[str, float] = {}
        self._samples: dict[str, list[Request]] = {}  # by the client's id, until the last has ended
        self._make_step_metrics()
        self._make_request_metrics()
        self._speculation = SpeculationMetrics(self.labels, self.counts)
        self._tiers = TierMetrics(self.labels, self.counts)
        self._states = StateMetrics(self.labels, self.counts)
        self._startup = Gauge(
            "twostroke:startup_seconds",
            "Seconds of start-up, by phase; process and ready count from the start of the process.",
            [*LABELS, "phase"],
            registry=self.counts,
        )

    def observe_startup(self, seconds: Mapping[str, float]) -> None:
        """Set the start-up time of each phase.

        ``process`` is all before loading began (interpreter, command line), ``ready`` all until the
        engine could take requests; between them lie ``import`` (with ``tokenizer`` beside it),
        ``config``, ``weights`` and ``kv_cache``.
        """
        for phase, value in seconds.items():
            self._startup.labels(*self.labels.values(), phase).set(value)

    def describe_cache(
        self, num_blocks: int, block_size: int, config: CacheConfig, groups: KVGroups = ONE_GROUP
    ) -> None:
        """Show the cache's size: vLLM's info metric, whose facts are labels of a constant 1."""
        facts = {
            "block_size": block_size,
            "cache_dtype": "auto",
            "enable_prefix_caching": config.enable_prefix_caching,
            "gpu_memory_utilization": config.gpu_memory_utilization,
            "kv_cache_memory_bytes": config.kv_cache_memory,
            "kv_cache_size_tokens": num_blocks // groups.count * block_size,
            "num_cpu_blocks": None,
            "num_gpu_blocks": num_blocks,
            "num_gpu_blocks_override": None,
            "sliding_window": groups.windows[0] if groups.count == 1 else None,
        }
        info = Gauge(
            "vllm:cache_config_info", "The KV cache.", [*LABELS, *facts], registry=self.counts
        )
        info.labels(*self.labels.values(), *map(str, facts.values())).set(1)

    def show_targets(self, targets: TargetObserver) -> None:
        """Show those for all requests; those of keys are for these keys alone."""
        self.counts.register(
            TargetSeries(
                "twostroke:target",
                lambda: [report for report in targets.report() if not report.key],
                self.labels,
            )
        )

    # ---- what the engine reports -----------------------------------------------------------------

    def on_add(self, requests: Sequence[Request]) -> None:
        self._samples[requests[0].spec.parent_id] = list(requests)
        self.observe_stats(self._read_stats())

    def on_step(self, step: ObservedStep) -> None:
        """Count one step and what it gave each request.

        As in vLLM, tokens that one step gave together (speculation) make one gap, and the prompt
        counts as processed with the first output token, cached tokens included. That token counts
        among the step's, beside those that went through the model.
        """
        num_first = self.observe_tokens(_new_tokens(step), step.finished)
        for request in step.ended:
            self.observe_finished(request, step.finished)
        self.observe_stats(step.stats)
        if step.prefix_queries:
            self._prefix_queries.inc(step.prefix_queries)
            self._prefix_hits.inc(step.prefix_hits)
            self._states.observe(step.started)
        if step.refused:
            self._refused.inc(len(step.refused))
        if step.plan.decisions:
            preempted = sum(d.reason is Reason.PREEMPTED for d in step.plan.decisions)
            self._preemptions.inc(preempted)
        if step.result.num_accepted_drafts:
            self._speculation.observe(step.plan, step.result)
        if step.plan.num_tokens:
            self._step_tokens.observe(step.plan.num_tokens + num_first)
            self._step_seconds.observe(step.finished - step.began)

    def on_end(self, requests: Sequence[Request], outputs: Sequence[RequestOutput]) -> None:
        for request in requests:
            self.observe_finished(request, request.finish_time or 0.0)
        self.observe_stats(self._read_stats())

    def close(self) -> None:
        """The metrics stay readable."""

    # ---- counting --------------------------------------------------------------------------------

    def observe_stats(self, stats: SchedulerStats) -> None:
        """Show this on the gauges from now on."""
        self.stats = stats
        self._tiers.stats = stats.tiers

    def observe_tokens(self, samples: Iterable[tuple[Request, int]], now: float) -> int:
        """Count the output tokens of each sample that became known together at ``now``.

        Returns:
            For how many samples these were the first.
        """
        num_generated = num_prompt = num_first = 0
        for request, num_new in samples:
            last = self._last_token_time.get(request.request_id)
            if last is None and request.num_output_tokens > num_new:
                pass  # another engine gave the first: nothing here is timed from it
            elif last is None:
                num_first += 1
                num_prompt += request.num_prompt_tokens
                self._ttft.observe(now - request.received_time)
            else:
                self._itl.observe(now - last)
            self._last_token_time[request.request_id] = now
            num_generated += num_new
        self._generation_tokens.inc(num_generated)
        if num_prompt:
            self._prompt_tokens.inc(num_prompt)
        return num_first

    def observe_finished(self, request: Request, now: float) -> None:
        """Count a sample that has ended, once. Only complete answers are timed."""
        last = self._last_token_time.pop(request.request_id, None)
        reason = request.finish_reason or FinishReason.ERROR
        self._success[reason].inc()
        self._forget(request)
        if reason not in (FinishReason.STOP, FinishReason.LENGTH):
            return
        self._e2e.observe(now - request.received_time)
        self._request_prompt_tokens.observe(request.num_prompt_tokens)
        self._request_generation_tokens.observe(request.num_output_tokens)
        self._request_preemptions.observe(request.num_preemptions)
        self._request_max_tokens.observe(request.max_total_tokens - request.num_prompt_tokens)
        if request.first_scheduled_time is None:
            return
        self._queue_time.observe(request.first_scheduled_time - request.arrival_time)
        first_token = request.first_token_time
        if first_token is None or last is None:
            return
        if first_token < request.first_scheduled_time:  # another engine gave it
            return
        self._prefill_time.observe(first_token - request.first_scheduled_time)
        self._inference_time.observe(last - request.first_scheduled_time)
        decode_time = last - first_token
        self._decode_time.observe(decode_time)
        if request.num_output_tokens > 1:  # a single token has no time between tokens
            self._tpot.observe(decode_time / (request.num_output_tokens - 1))

    def observe_samples(self, samples: Sequence[Request]) -> None:
        """Count a call whose last sample has ended, if any of them is a complete answer."""
        complete = (FinishReason.STOP, FinishReason.LENGTH)
        if any(sample.finish_reason in complete for sample in samples):
            self._num_samples.observe(len(samples))
            self._longest_sample.observe(max(sample.num_output_tokens for sample in samples))

    def _forget(self, request: Request) -> None:
        samples = self._samples.get(request.spec.parent_id)
        if samples is not None and all(sample.finish_reason for sample in samples):
            del self._samples[request.spec.parent_id]
            self.observe_samples(samples)

    def render(self) -> tuple[bytes, str]:
        """The exposition text and its content type."""
        return generate_latest(self.registry), CONTENT_TYPE

    def render_counts(self) -> bytes:
        """The exposition text without gauges of the load, for a client that has the statistics."""
        return generate_latest(self.counts)

    def _make_step_metrics(self) -> None:
        self._prefix_queries = self._counter(
            "vllm:prefix_cache_queries", "Tokens looked up in the prefix cache."
        )
        self._prefix_hits = self._counter(
            "vllm:prefix_cache_hits", "Tokens found in the prefix cache."
        )
        self._refused = self._counter(
            "twostroke:requests_refused", "Calls refused early, since they would come too late."
        )
        self._preemptions = self._counter("vllm:num_preemptions", "Preemptions.")
        self._step_tokens = self._histogram(
            "vllm:iteration_tokens_total", "Tokens per step.", STEP_TOKENS_BUCKETS
        )
        self._step_seconds = self._histogram(
            "twostroke:step_duration_seconds", "Seconds per step.", STEP_SECONDS_BUCKETS
        )

    def _make_request_metrics(self) -> None:
        self._prompt_tokens = self._counter("vllm:prompt_tokens", "Prompt tokens processed.")
        self._generation_tokens = self._counter("vllm:generation_tokens", "Tokens generated.")
        seconds: Callable[[str, str, Sequence[float]], BulkHistogram] = self._histogram
        self._ttft = seconds(
            "vllm:time_to_first_token_seconds", "Arrival to first token.", TTFT_BUCKETS
        )
        self._itl = seconds(
            "vllm:inter_token_latency_seconds", "Gap between two tokens.", TOKEN_GAP_BUCKETS
        )
        self._tpot = seconds(
            "vllm:request_time_per_output_token_seconds",
            "Mean gap between a request's tokens.",
            TOKEN_GAP_BUCKETS,
        )
        self._e2e = seconds("vllm:e2e_request_latency_seconds", "Arrival to end.", REQUEST_BUCKETS)
        self._queue_time = seconds(
            "vllm:request_queue_time_seconds", "Arrival to first step.", REQUEST_BUCKETS
        )
        self._prefill_time = seconds(
            "vllm:request_prefill_time_seconds", "First step to first token.", REQUEST_BUCKETS
        )
        self._inference_time = seconds(
            "vllm:request_inference_time_seconds", "First step to last token.", REQUEST_BUCKETS
        )
        self._decode_time = seconds(
            "vllm:request_decode_time_seconds", "First to last token.", REQUEST_BUCKETS
        )
        tokens: Callable[[str, str], BulkHistogram] = partial(
            self._histogram, buckets=REQUEST_TOKENS_BUCKETS
        )
        self._request_prompt_tokens = tokens(
            "vllm:request_prompt_tokens", "Prompt tokens of a request."
        )
        self._request_generation_tokens = tokens(
            "vllm:request_generation_tokens", "Tokens generated for a request."
        )
        self._request_max_tokens = tokens(
            "vllm:request_params_max_tokens", "Most tokens that a request could get."
        )
        self._request_preemptions = self._histogram(
            "vllm:request_num_preemptions", "Preemptions of a request.", PREEMPTIONS_BUCKETS
        )
        self._longest_sample = tokens(
            "vllm:request_max_num_generation_tokens", "Tokens of a request's longest sample."
        )
        self._num_samples = self._histogram(
            "vllm:request_params_n", "Samples of a request.", SAMPLES_BUCKETS
        )
        success = Counter(
            "vllm:request_success",
            "Finished requests, by reason.",
            [*LABELS, "finished_reason"],
            registry=self.counts,
        )
        self._success = {
            reason: success.labels(*self.labels.values(), reason.value) for reason in FinishReason
        }

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(name, text, LABELS, registry=self.counts).labels(*self.labels.values())

    def _histogram(self, name: str, text: str, buckets: Sequence[float]) -> BulkHistogram:
        return BulkHistogram(name, text, self.labels, buckets, self.counts)


def _new_tokens(step: ObservedStep) -> Iterator[tuple[Request, int]]:
    """The requests that the step gave tokens, and how many they kept."""
    for share, request in zip(step.plan.scheduled.values(), step.requests):
        known_before = share.start + share.num_tokens - len(share.draft_token_ids)
        if share.samples and request.num_tokens > known_before:
            yield request, request.num_tokens - known_before
