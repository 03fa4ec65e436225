"""Protects: what a long prompt costs others, by FLOPs and bytes that are counted here."""

from __future__ import annotations

import pytest

from tests.lab.intervals import read_interval
from twostroke.lab.long_prompts import arrive
from twostroke.lab.registry import find_claims

# Llama 3.1 8B by its model card: parameters of all layers; layers, hidden size, cached elements.
IN_LAYERS = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336)
LAYERS, HIDDEN, CACHED = 32, 4096, 2 * 8 * 128
DENSE, BANDWIDTH = 989.4e12, 3.35e12


def test_a_long_prompt_takes_more_than_its_weights() -> None:
    (claim,) = find_claims(["long-prompt-stall"])
    computed = claim.compute()
    weights = 2 * 32_000 * IN_LAYERS / DENSE
    attention = 4 * LAYERS * HIDDEN * 32_000**2 / 2 / DENSE
    assert computed.figures["least"] == pytest.approx(weights, rel=1e-3)
    assert weights + attention < computed.figures["eight"] < 2 * (weights + attention)
    assert computed.figures["seventy"] > computed.figures["eight"]
    # No part of the interval is faster than all FLOPs at the full rate.
    (simulated,) = (fact.value for fact in computed.facts if fact.what.startswith("8B, one step"))
    assert weights + attention <= read_interval(simulated)[0] < computed.figures["eight"]
    assert computed.verdict.name == "wrong as stated"


def test_chunks_bound_the_wait_and_lengthen_the_prompt() -> None:
    (claim,) = find_claims(["chunked-prefill"])
    computed = claim.compute()
    figures = computed.figures
    whole = arrive("llama-3.1-8b", "h100-sxm", 1, 8192, 20_000)
    assert figures["whole"] == pytest.approx(whole.worst, rel=1e-6)
    # Eight pieces of equal work would take an eighth each; steps have costs of their own.
    assert figures["whole"] / 8 < figures["chunked"] < figures["whole"] / 4
    assert 1 < figures["chunked_ttft"] / figures["whole_ttft"] < 1.5
    assert figures["chunked"] < figures["longer"] < 3 * figures["chunked"]
    assert computed.verdict.name == "holds"


def test_ttft_grows_faster_than_the_prompt_in_the_end() -> None:
    (claim,) = find_claims(["ttft-and-prompt"])
    computed = claim.compute()
    times = {int(name): seconds for name, seconds in computed.figures.items()}
    assert list(times.values()) == sorted(times.values())
    # Twice the tokens: twice the products, four times the pairs.
    assert times[2000] / times[1000] < 2.1 < 2.5 < times[128000] / times[64000] < 4
    assert computed.verdict.name == "holds"


def test_tpot_grows_once_the_cache_is_as_large_as_the_weights() -> None:
    (claim,) = find_claims(["tpot-and-context"])
    computed = claim.compute()
    figures = computed.figures
    cached = LAYERS * CACHED * 2
    parameters = IN_LAYERS + 2 * 128256 * HIDDEN + 2 * LAYERS * HIDDEN + HIDDEN
    assert figures["even"] == pytest.approx(2 * parameters / cached, rel=1e-6)
    # 7,000 tokens more to read, at the data sheet's bandwidth or a little less.
    more = 7000 * cached / BANDWIDTH
    # At 13,000 tokens the cache is less than a ninth of the weights.
    assert "below some 13,000 the weights are nine tenths" in computed.verdict.text
    assert 13_000 * cached < 2 * parameters / 9 < 14_000 * cached
    assert more < figures["alone_8000"] - figures["alone_1000"] < 2 * more
    assert computed.verdict.name == "holds with a condition"
