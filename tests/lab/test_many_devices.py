"""Protects: several devices, together and apart, against bounds that are worked out here."""

from __future__ import annotations

import pytest

from twostroke.lab.apart import PromptsArriveComputed, requests_at, serve_apart, serve_together
from twostroke.lab.devices import Placed
from twostroke.lab.many_devices import GIGABIT, LENGTHS, RATE
from twostroke.lab.registry import find_claims
from twostroke.simulator.workloads.base import RequestSpec
from twostroke.timing.step_shape import StepShape

EIGHT_B = Placed("llama-3.1-8b", "h100")
KV_BYTES = 2 * 32 * 8 * 128 * 2  # of a token of Llama 3.1 8B


def test_eight_devices_are_less_than_eight_times_one() -> None:
    (claim,) = find_claims(["eight-devices"])
    computed = claim.compute()
    decode = [computed.figures[f"decode_{name}"] for name in ("8B", "70B", "405B")]
    assert decode == sorted(decode) and all(1 < speed < 8 for speed in decode)
    assert 4.5 <= computed.figures["decode_70B"] <= 6 and computed.figures["decode_8B"] < 4.5
    for name, speed in computed.figures.items():
        what, size = name.split("_")
        said = f"{size} {'prompts' if what == 'prompt' else what} ("
        assert (said in computed.verdict.text) == (4.5 <= speed <= 6.6), name
    assert computed.verdict.name == "holds with a condition"


def test_a_prompt_that_arrives_computed_decodes_at_once() -> None:
    cost = PromptsArriveComputed(EIGHT_B.cost)
    arrived = cost.step(StepShape(3, 300, ((101, 0),), 4))
    assert arrived == EIGHT_B.cost.step(StepShape(4, 401, (), 4))
    shape = StepShape(3, 300, (), 3)
    assert cost.step(shape) == EIGHT_B.cost.step(shape)


def test_a_request_apart_takes_prompt_link_and_steps() -> None:
    """One request on idle devices: each part by itself."""
    prompt, answer, link = 1500, 5, 1e9
    (served,) = serve_apart(EIGHT_B, [RequestSpec(0, 0.0, prompt, answer)], link)
    assert served.ttft == pytest.approx(EIGHT_B.prompt(prompt).seconds, rel=1e-6)
    steps = sum(EIGHT_B.decode(1, prompt + number).seconds for number in range(1, answer))
    wait = KV_BYTES * prompt / link
    assert served.tpot * (answer - 1) == pytest.approx(wait + steps, rel=0.01)


def test_apart_and_together_serve_the_same_requests() -> None:
    specs = requests_at(4.0, 500, 50, count=40)
    assert min(spec.output_tokens for spec in specs) >= 2
    together = serve_together(EIGHT_B, specs, 8192)
    apart = serve_apart(EIGHT_B, specs, 450e9)
    assert len(together) == len(apart) == 40
    # The device that decodes never waits for a prompt.
    assert max(each.tpot for each in apart) < max(each.tpot for each in together)


def test_apart_serves_more_only_where_tokens_must_come_quickly() -> None:
    (claim,) = find_claims(["disaggregation"])
    computed = claim.compute()
    figures = computed.figures
    assert figures["apart_tight"] > max(figures["together_tight"], figures["in chunks_tight"])
    assert figures["apart_loose"] < max(figures["together_loose"], figures["in chunks_loose"])
    assert computed.verdict.name == "holds with a condition"


def test_a_link_that_carries_less_than_what_comes_is_worse_than_none() -> None:
    (claim,) = find_claims(["slow-links"])
    computed = claim.compute()
    figures = computed.figures
    needed = 2 * 80 * 8 * 128 * 2 * LENGTHS[0] * RATE
    assert figures["needed"] == pytest.approx(needed)
    assert 10 * GIGABIT < needed < 25 * GIGABIT
    assert figures["NVLink"] < figures["together"] < figures["10 Gb/s"]
    assert computed.verdict.name == "holds"
