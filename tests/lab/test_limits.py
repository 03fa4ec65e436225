"""Protects: claims on what one request can get are judged by arithmetic that is done here anew."""

from __future__ import annotations

import pytest

from tests.lab.intervals import read_interval
from twostroke.lab.judging import judge_all, judge_range
from twostroke.lab.registry import find_claims

# Llama 3.1 70B by its model card: layers, hidden size, KV width, MLP, vocabulary.
LAYERS, HIDDEN, KV, MLP, WORDS = 80, 8192, 1024, 28672, 128256
PARAMETERS = LAYERS * (2 * HIDDEN * HIDDEN + 2 * HIDDEN * KV + 3 * HIDDEN * MLP + 2 * HIDDEN)
PARAMETERS += 2 * WORDS * HIDDEN + HIDDEN
# Data sheets: H100 SXM, H200.
BANDWIDTH, DENSE = 3.35e12, 989.4e12


def test_a_range_holds_to_a_tenth() -> None:
    assert judge_range(1.9, 2, 3) == judge_range(3.2, 2, 3) == "holds"
    assert judge_range(1.7, 2, 3) == judge_range(3.4, 2, 3) == "wrong as stated"
    assert judge_all([2, 3], 2, 3) == "holds"
    assert judge_all([2, 9], 2, 3) == "holds with a condition"
    assert judge_all([1, 9], 2, 3) == "wrong as stated"


def test_decode_is_bounded_by_reading_the_weights() -> None:
    (claim,) = find_claims(["decode-ceiling"])
    computed = claim.compute()
    ceiling = BANDWIDTH / (2 * PARAMETERS)
    assert computed.figures["ceiling"] == pytest.approx(ceiling, rel=1e-6)
    assert computed.figures["simulated"] < ceiling
    # Two bytes a parameter on 85.5 GB each: one device is too small, two are not.
    assert computed.figures["devices"] == 2
    assert computed.figures["reached"] < 2 * ceiling < computed.figures["together"]
    assert computed.verdict.name == "holds with a condition"


def test_a_prompt_takes_what_its_flops_take_and_more() -> None:
    (claim,) = find_claims(["prefill-time"])
    computed = claim.compute()
    tokens = 1500
    # A token meets each weight of a layer once, a pair of tokens each query head twice.
    in_layers = PARAMETERS - 2 * WORDS * HIDDEN - HIDDEN - 2 * LAYERS * HIDDEN
    pairs = tokens * (tokens + 1) // 2
    flops = 2 * tokens * in_layers + 4 * LAYERS * HIDDEN * pairs + 2 * WORDS * HIDDEN
    assert computed.figures["flops"] == pytest.approx(flops, rel=1e-3)
    assert computed.figures["least"] == pytest.approx(flops / 2 / DENSE, rel=1e-3)
    assert 0.5 < computed.figures["least"] / computed.figures["simulated"] < 0.8
    # No part of the interval is faster than the FLOPs alone.
    (simulated,) = (fact.value for fact in computed.facts if fact.what == "simulated")
    assert computed.figures["least"] <= read_interval(simulated)[0] < computed.figures["simulated"]
    assert computed.verdict.name == "holds"


def test_an_answer_is_its_first_token_and_the_rest() -> None:
    (claim,) = find_claims(["answer-time"])
    computed = claim.compute()
    assert computed.figures["claimed"] == pytest.approx(9.2)
    assert computed.figures["exact"] == pytest.approx(0.2 + 299 * 0.03)
    # Alone, a token takes at least the time to read half of the weights on each of two H200.
    assert computed.figures["alone"] > 299 * PARAMETERS / 4.8e12
    assert computed.verdict.name == "holds"
