"""Protects: what speculation gains, by chance drawn here and by limits worked out by hand."""

from __future__ import annotations

import random

import pytest

from twostroke.lab.devices import Placed
from twostroke.lab.drafts import DEPTH, DRAFTED, PLAIN, break_even, gain, tokens_a_pass
from twostroke.lab.registry import find_claims
from twostroke.model_spec.public_models import find_model


def test_tokens_a_pass_are_those_of_many_drawn_passes() -> None:
    rng = random.Random(0)

    def drawn(acceptance: float) -> int:
        accepted = 0
        while accepted < DEPTH and rng.random() < acceptance:
            accepted += 1
        return accepted + 1

    for acceptance in (0.0, 0.5, 0.85):
        mean = sum(drawn(acceptance) for _ in range(20_000)) / 20_000
        assert tokens_a_pass(acceptance, DEPTH) == pytest.approx(mean, rel=0.02)
    assert tokens_a_pass(1.0, DEPTH) == DEPTH + 1


def test_a_request_alone_gains_what_is_claimed_and_a_full_batch_does_not() -> None:
    (claim,) = find_claims(["speculation"])
    computed = claim.compute()
    figures = computed.figures
    # A pass reads the target once and the draft model four times: bytes alone bound the gain.
    sizes = [find_model(name).weight_bytes() for name in ("llama-3.1-70b", "llama-3.2-1b")]
    bound = tokens_a_pass(0.85, DEPTH) / (1 + DEPTH * sizes[1] / sizes[0])
    assert 2 <= figures["alone_low"] < figures["alone_high"] < bound
    assert figures["full_low"] < 1 and figures["full_high"] < 2
    assert computed.verdict.name == "holds with a condition"


@pytest.mark.parametrize("requests", [1, 32, 256])
def test_at_the_break_even_drafts_gain_nothing(requests: int) -> None:
    for placed in (DRAFTED, PLAIN):
        rate = break_even(placed, requests, DEPTH)
        assert rate is not None
        assert gain(placed, requests, rate, DEPTH) == pytest.approx(1.0, abs=1e-6)
        assert gain(placed, requests, min(1.0, rate + 0.05), DEPTH) > 1


def test_a_pass_that_costs_more_than_all_drafts_never_pays() -> None:
    """A draft model as large as the target takes a whole step for each draft."""
    itself = Placed("llama-3.1-70b", "h100", 4, draft_model="llama-3.1-70b")
    assert break_even(itself, 1, DEPTH) is None


def test_the_break_even_depends_on_the_batch() -> None:
    (claim,) = find_claims(["speculation-break-even"])
    computed = claim.compute()
    figures = computed.figures
    assert figures["quoted_1"] < figures["model_1"] < 0.4 < 0.6 < figures["model_256"]
    # Half is passed between 32 and 128 requests; one batch that is asked has it to a tenth.
    assert figures["model_32"] < 0.45 < 0.55 < figures["model_128"]
    assert figures["quoted_32"] < 0.45 < figures["quoted_128"] < 0.55
    said = "About 50 % is right for 128 at once whose drafts are quoted"
    assert said in computed.verdict.text
    assert computed.verdict.name == "holds with a condition"
