"""Protects: penalties change logits as their definitions say, each and all together."""

from __future__ import annotations

import torch

from tests.sampling.helpers import make_request
from twostroke.sampling.penalties import apply_penalties
from twostroke.sampling.request_state import RequestState

LOGITS = [4.0, -4.0, 2.0, 0.0, -torch.inf]


def penalized(request: RequestState) -> list[float]:
    logits = torch.tensor([LOGITS, LOGITS])
    apply_penalties(logits, [make_request(), request])
    assert logits[0].tolist() == LOGITS
    result: list[float] = logits[1].tolist()
    return result


def test_repetition_divides_positive_and_multiplies_negative_logits_of_prompt_and_output() -> None:
    assert penalized(make_request((0, 1, 3), (4, 0), repetition_penalty=2.0)) == [
        2.0,
        -8.0,
        2.0,
        0.0,
        -torch.inf,
    ]
    assert penalized(make_request((0,), (1,), repetition_penalty=0.5)) == [
        8.0,
        -2.0,
        2.0,
        0.0,
        -torch.inf,
    ]


def test_presence_is_subtracted_once_for_output_tokens_only() -> None:
    assert penalized(make_request((0, 3), (1, 1, 2), presence_penalty=1.5)) == [
        4.0,
        -5.5,
        0.5,
        0.0,
        -torch.inf,
    ]


def test_frequency_is_subtracted_for_each_occurrence_in_the_output() -> None:
    assert penalized(make_request((0, 3), (1, 1, 2), frequency_penalty=-0.5)) == [
        4.0,
        -3.0,
        2.5,
        0.0,
        -torch.inf,
    ]


def test_all_three_in_order() -> None:
    request = make_request(
        (0,), (2, 2, 4), repetition_penalty=2.0, presence_penalty=0.25, frequency_penalty=1.0
    )
    assert penalized(request) == [2.0, -4.0, 1.0 - 0.25 - 2.0, 0.0, -torch.inf]
