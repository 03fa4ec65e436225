"""Protects: live parts measure the engine on pilot, and what they count is exact."""

from __future__ import annotations

import random

import pytest

from tests.lab.test_batching import steps_of
from twostroke.lab.live import (
    LiveBench,
    decode_seconds,
    fitting_length,
    gaps_of_an_arrival,
    greedy,
    prompt_seconds,
    run_to_end,
)
from twostroke.lab.machine import product_seconds, read_bandwidth
from twostroke.lab.registry import find_claims
from twostroke.startup import load_engine


@pytest.fixture
def bench() -> LiveBench:
    return LiveBench("pilot", load_engine)


def test_the_cache_is_as_the_formula_says(bench: LiveBench) -> None:
    (claim,) = find_claims(["kv-arithmetic"])
    observed = claim.observe(bench)
    assert observed.figures["per_token"] == observed.figures["formula"]
    assert observed.figures["tokens"] * observed.figures["per_token"] == 2**26
    assert observed.text == "To the byte."


def test_paging_fits_more_than_reservations(bench: LiveBench) -> None:
    (claim,) = find_claims(["paging"])
    figures = claim.observe(bench).figures
    assert figures["reserved"] == 4096 // 512
    # 48 requests of at most 128 tokens have room at once, or nearly.
    assert 4096 // 128 <= figures["paged"] <= 48


def test_continuous_batching_takes_fewer_steps(bench: LiveBench) -> None:
    (claim,) = find_claims(["continuous-batching"])
    figures = claim.observe(bench).figures
    assert figures["fewer"] == pytest.approx(figures["static_steps"] / figures["continuous_steps"])
    assert figures["fewer"] > 1.5


def test_steps_of_batches_are_timed(bench: LiveBench) -> None:
    (claim,) = find_claims(["busy-and-slow"])
    observed = claim.observe(bench)
    assert list(observed.figures) == ["step_1", "step_4", "step_16"]
    assert all(0 < seconds < 60 for seconds in observed.figures.values())
    assert [fact.what for fact in observed.facts] == ["1 at once", "4 at once", "16 at once"]


def test_a_prompt_that_moves_is_bytes_over_seconds(bench: LiveBench) -> None:
    (claim,) = find_claims(["slow-links"])
    figures = claim.observe(bench).figures
    assert figures["slowest"] == pytest.approx(figures["bytes"] / figures["compute"])
    assert figures["moved"] > 0


def test_the_worst_gap_is_that_of_the_long_prompt(bench: LiveBench) -> None:
    with bench.engine(max_num_batched_tokens=2**14, max_num_seqs=8) as engine:
        gaps = gaps_of_an_arrival(engine, 1024)
        assert gaps.worst > gaps.quiet
        assert not engine.has_work()
        assert decode_seconds(engine, 2, num_steps=8) > 0
        assert prompt_seconds(engine, 32, rounds=1) > 0
        assert fitting_length(engine, 512) in (256, 512)
        assert fitting_length(engine, 8192, seconds=0) == 256


def test_steps_are_counted(bench: LiveBench) -> None:
    rng = random.Random(1)
    lengths = [rng.randint(2, 12) for _ in range(12)]
    with bench.engine(max_num_seqs=3, batching="static") as engine:
        for number, length in enumerate(lengths):
            engine.submit(greedy(f"{number}", [7, 8, 9], length))
        assert run_to_end(engine) == steps_of(lengths, 3)[1]


def test_the_machine_reads_and_multiplies() -> None:
    assert read_bandwidth() > 1e8
    # Zeros are numbers like others: within the noise of a shared machine.
    ratio = product_seconds(zeros=False) / product_seconds(zeros=True)
    assert 0.3 < ratio < 3
