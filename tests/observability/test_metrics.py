"""Metrics: names as in vLLM, and the numbers that a known run must give."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.observability.runs import make_request, observe, take_steps
from twostroke.core.config import CacheConfig
from twostroke.core.request import FinishReason, Request
from twostroke.observability.events import SchedulerStats
from twostroke.observability.metrics import EngineMetrics

NAMES = """
vllm:num_requests_running vllm:num_requests_waiting vllm:kv_cache_usage_perc
vllm:prefix_cache_queries_total vllm:prefix_cache_hits_total vllm:num_preemptions_total
vllm:prompt_tokens_total vllm:generation_tokens_total vllm:time_to_first_token_seconds_bucket
vllm:inter_token_latency_seconds_bucket vllm:request_time_per_output_token_seconds_bucket
vllm:e2e_request_latency_seconds_bucket vllm:request_queue_time_seconds_bucket
vllm:request_prefill_time_seconds_bucket vllm:request_decode_time_seconds_bucket
vllm:request_success_total vllm:iteration_tokens_total_bucket vllm:request_prompt_tokens_bucket
vllm:request_generation_tokens_bucket vllm:request_params_max_tokens_bucket
vllm:request_max_num_generation_tokens_bucket vllm:request_params_n_bucket
vllm:request_num_preemptions_bucket vllm:num_requests_waiting_by_reason
vllm:request_inference_time_seconds_bucket twostroke:kv_cache_waste_ratio
twostroke:step_duration_seconds_bucket vllm:spec_decode_num_drafts_total
vllm:spec_decode_num_draft_tokens_total vllm:spec_decode_num_accepted_tokens_total
"""


def value(metrics: EngineMetrics, sample: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(
        sample, {"model_name": "pilot", "engine": "0", **labels}
    )


def mean(metrics: EngineMetrics, name: str) -> tuple[float | None, float | None]:
    return value(metrics, f"{name}_count"), value(metrics, f"{name}_sum")


def is_forgotten(metrics: EngineMetrics, request: Request) -> bool:
    """No gap since its last token is counted if an equal id comes again."""
    before = mean(metrics, "vllm:inter_token_latency_seconds")
    metrics.observe_tokens([(request, 1)], 1000.0)
    return mean(metrics, "vllm:inter_token_latency_seconds") == before


def finish(request: Request, reason: FinishReason) -> Request:
    request.finish_reason = reason
    return request


def test_names_and_labels() -> None:
    text, content_type = EngineMetrics("pilot").render()
    assert content_type.startswith("text/plain")
    families = text_string_to_metric_families(text.decode())
    samples = [sample for family in families for sample in family.samples]
    assert set(NAMES.split()) <= {s.name for s in samples}
    assert all((s.labels["model_name"], s.labels["engine"]) == ("pilot", "0") for s in samples)


def test_steps() -> None:
    metrics = EngineMetrics("pilot")
    for step in take_steps():
        metrics.on_step(step)
    assert value(metrics, "vllm:num_preemptions_total") == 1
    # As in vLLM, the first output token of each request counts beside what was computed.
    assert mean(metrics, "vllm:iteration_tokens_total") == (5, 14 + 2)
    assert value(metrics, "vllm:iteration_tokens_total_bucket", le="1.0") == 2
    count, total = mean(metrics, "twostroke:step_duration_seconds")
    assert count == 5
    assert total == pytest.approx(0.5)


def test_state_of_the_cache() -> None:
    metrics = EngineMetrics("pilot")
    stats = SchedulerStats(
        num_running=2,
        num_waiting=3,
        num_deferred=1,
        total_blocks=10,
        free_blocks=6,
        allocated_slots=10,
        used_slots=9,
    )
    metrics.on_step(observe(0, 0.0, [], stats=stats, prefix=(20, 16)))
    assert metrics.stats == stats
    assert value(metrics, "vllm:num_requests_running") == 2
    assert value(metrics, "vllm:num_requests_waiting") == 3
    by_reason = "vllm:num_requests_waiting_by_reason"
    assert value(metrics, by_reason, reason="capacity") == 2
    assert value(metrics, by_reason, reason="deferred") == 1
    assert value(metrics, "vllm:kv_cache_usage_perc") == pytest.approx(0.4)
    assert value(metrics, "twostroke:kv_cache_waste_ratio") == pytest.approx(0.1)
    assert value(metrics, "vllm:prefix_cache_queries_total") == 20
    assert value(metrics, "vllm:prefix_cache_hits_total") == 16
    assert value(metrics, "vllm:iteration_tokens_total_count") == 0  # nothing ran


def test_latencies_of_a_request() -> None:
    metrics, request = EngineMetrics("pilot"), make_request(arrival_time=1.0)
    request.first_scheduled_time, request.first_token_time = 1.5, 2.5
    for now, count in ((2.5, 1), (3.5, 1), (4.5, 3)):
        request.token_ids.extend([7] * count)
        metrics.observe_tokens([(request, count)], now)
    metrics.observe_finished(finish(request, FinishReason.STOP), 4.75)
    assert mean(metrics, "vllm:time_to_first_token_seconds") == (1, 1.5)
    assert mean(metrics, "vllm:inter_token_latency_seconds") == (2, 2.0)
    assert mean(metrics, "vllm:request_time_per_output_token_seconds") == (1, 0.5)
    assert mean(metrics, "vllm:e2e_request_latency_seconds") == (1, 3.75)
    assert mean(metrics, "vllm:request_queue_time_seconds") == (1, 0.5)
    assert mean(metrics, "vllm:request_prefill_time_seconds") == (1, 1.0)
    assert mean(metrics, "vllm:request_decode_time_seconds") == (1, 2.0)
    assert mean(metrics, "vllm:request_inference_time_seconds") == (1, 3.0)
    assert value(metrics, "vllm:prompt_tokens_total") == 6
    assert mean(metrics, "vllm:request_prompt_tokens") == (1, 6)
    assert mean(metrics, "vllm:request_generation_tokens") == (1, request.num_output_tokens)
    assert mean(metrics, "vllm:request_params_max_tokens") == (1, request.max_total_tokens - 6)
    assert value(metrics, "vllm:request_prompt_tokens_bucket", le="5.0") == 0
    assert value(metrics, "vllm:request_prompt_tokens_bucket", le="10.0") == 1
    assert value(metrics, "vllm:generation_tokens_total") == 5
    assert value(metrics, "vllm:request_success_total", finished_reason="stop") == 1
    assert is_forgotten(metrics, request)


def test_one_token_has_no_time_per_token() -> None:
    metrics, request = EngineMetrics("pilot"), make_request()
    request.first_scheduled_time = request.first_token_time = 1.0
    request.token_ids.append(7)
    metrics.observe_tokens([(request, 1)], 1.0)
    metrics.observe_finished(finish(request, FinishReason.LENGTH), 1.0)
    assert mean(metrics, "vllm:request_time_per_output_token_seconds") == (0, 0)
    assert mean(metrics, "vllm:request_decode_time_seconds") == (1, 0)


@pytest.mark.parametrize("reason", [FinishReason.ABORT, FinishReason.ERROR])
def test_aborted_and_failed_requests_are_counted_but_not_timed(reason: FinishReason) -> None:
    metrics, request = EngineMetrics("pilot"), make_request()
    metrics.observe_tokens([(request, 1)], 1.0)
    metrics.observe_finished(finish(request, reason), 2.0)
    assert value(metrics, "vllm:request_success_total", finished_reason=reason.value) == 1
    assert mean(metrics, "vllm:e2e_request_latency_seconds") == (0, 0)
    assert mean(metrics, "vllm:request_prompt_tokens") == (0, 0)
    assert is_forgotten(metrics, request)


def test_the_samples_of_a_request() -> None:
    metrics = EngineMetrics("pilot")
    samples = [
        finish(make_request(), FinishReason.LENGTH),
        finish(make_request(), FinishReason.STOP),
    ]
    samples[1].token_ids.extend([7, 7])
    metrics.observe_samples(samples)
    metrics.observe_samples([finish(make_request(), FinishReason.ABORT)])
    assert mean(metrics, "vllm:request_params_n") == (1, 2)
    assert mean(metrics, "vllm:request_max_num_generation_tokens") == (
        1,
        samples[1].num_output_tokens,
    )


def test_the_size_of_the_cache() -> None:
    """What routers of Kubernetes' Gateway API read to know how much a server can hold."""
    metrics = EngineMetrics("pilot")
    metrics.describe_cache(320, 16, CacheConfig(kv_cache_memory=2**20))
    facts = {
        "block_size": "16",
        "cache_dtype": "auto",
        "enable_prefix_caching": "True",
        "gpu_memory_utilization": "0.9",
        "kv_cache_memory_bytes": "1048576",
        "kv_cache_size_tokens": "5120",
        "num_cpu_blocks": "None",
        "num_gpu_blocks": "320",
        "num_gpu_blocks_override": "None",
        "sliding_window": "None",
    }
    assert value(metrics, "vllm:cache_config_info", **facts) == 1


def test_startup_phases() -> None:
    metrics = EngineMetrics("pilot")
    metrics.observe_startup({"import": 1.25, "weights": 2.0})
    assert value(metrics, "twostroke:startup_seconds", phase="import") == 1.25


def test_two_engines_do_not_meet() -> None:
    first, second = EngineMetrics("pilot"), EngineMetrics("pilot")
    first.observe_tokens([(make_request(), 1)], 1.0)
    assert value(second, "vllm:generation_tokens_total") == 0
