"""Protects: metrics and step events say what lies in tiers and what moved."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from tests.scheduling.harness import BLOCK, Harness, make_request
from tests.scheduling.test_tiers import PROMPT, evicted, run
from twostroke.core.step import StepResult
from twostroke.observability.events import StepEvent
from twostroke.observability.observer import ObservedStep
from twostroke.observability.tier_metrics import TierMetrics
from twostroke.scheduling.stats import read_stats


def returned() -> Harness:
    """A prefix of five blocks has been evicted to host memory and begins to come back."""
    harness, _ = evicted()
    harness.scheduler.add(make_request("again", PROMPT, 2))
    harness.step()
    return harness


def test_metrics_count_blocks_bytes_and_tokens() -> None:
    harness = returned()
    run(harness)
    registry = CollectorRegistry()
    metrics = TierMetrics({"model_name": "m", "engine": "0"}, registry)
    assert generate_latest(registry) == b""  # without tiers there is nothing to show
    stats = read_stats(harness.scheduler).tiers
    assert stats is not None
    metrics.stats = stats
    lines = generate_latest(registry).decode().splitlines()
    labels = '{engine="0",model_name="m",tier="host"}'
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    assert float(values[f"twostroke:kv_tier_hit_tokens_total{labels}"]) == 5 * BLOCK
    assert float(values[f"twostroke:kv_tier_loaded_bytes_total{labels}"]) == 5 * BLOCK * 8
    assert float(values[f"twostroke:kv_tier_blocks{labels}"]) == stats.blocks["host"] > 5
    assert 'twostroke:kv_swapped_out_requests_total{engine="0",model_name="m"}' in values


def test_a_step_event_names_the_blocks_that_move() -> None:
    harness = returned()
    result = StepResult(loaded=["again"])
    step = ObservedStep(
        harness.last, result, [], [], lambda: 1.0, lambda: read_stats(harness.scheduler)
    )
    event = StepEvent.from_dict(step.event.to_dict())
    (load,) = event.block_loads
    assert (load.tier, load.request_id, len(load.block_ids)) == ("host", "again", 5)
    assert [save.tier for save in event.block_saves] == ["host"]
    assert event.loaded == ["again"]
