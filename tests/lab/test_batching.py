"""Protects: claims on batches agree with step counts that are worked out here."""

from __future__ import annotations

import heapq

import pytest

from twostroke.lab.batching import CHATS
from twostroke.lab.registry import find_claims
from twostroke.simulator.workloads.make import make_workload


def steps_of(lengths: list[int], places: int) -> tuple[int, int]:
    """Decode steps of slots that are filled at once when free, and of whole batches."""
    ends: list[int] = [0] * places
    for length in lengths:
        heapq.heappush(ends, heapq.heappop(ends) + length)
    batches = [lengths[first : first + places] for first in range(0, len(lengths), places)]
    return max(ends), sum(map(max, batches))


def test_continuous_batching_saves_the_steps_of_empty_places() -> None:
    (claim,) = find_claims(["continuous-batching"])
    computed = claim.compute()
    lengths = [spec.output_tokens for spec in make_workload(CHATS).workload.arrivals()]
    continuous, static = steps_of(lengths, 16)
    # Steps of fewer requests are a little shorter, and prompts take the same time in both.
    assert computed.figures["high"] == pytest.approx(static / continuous, rel=0.15)
    assert computed.figures["even"] == pytest.approx(1.0, abs=0.05)
    assert computed.verdict.name == "holds with a condition"


def test_busy_servers_may_be_fast_or_slow() -> None:
    (claim,) = find_claims(["busy-and-slow"])
    computed = claim.compute()
    figures = computed.figures
    # Two words a second are 8/3 tokens.
    assert figures["long"] > 3 / 8 * 0.9 and figures["chats"] < 3 / 80
    assert figures["alone"] < figures["most"] < 3 * figures["alone"]
    # So many fill the memory: four devices of 85.5 GB hold 141 GB of weights, the rest is cache.
    cache = 0.9 * 4 * 85.5e9 - 141.1e9
    assert figures["requests"] == pytest.approx(cache / (2000 * 327_680), rel=0.1)
    assert "100%" in " ".join(fact.value for fact in computed.facts)
    assert computed.verdict.name == "holds with a condition"


def test_short_answers_compare_arithmetic_and_long_ones_bandwidth() -> None:
    (claim,) = find_claims(["short-benchmarks"])
    computed = claim.compute()
    # H100 PCIe over A100 SXM by their data sheets: 756 over 312 TFLOP/s, 2.0 over 2.04 TB/s.
    assert 1.5 < computed.figures["short"] < 756 / 312
    assert 2.0 / 2.04 < computed.figures["long"] < computed.figures["short"] / 1.2
    assert computed.verdict.name == "holds"
