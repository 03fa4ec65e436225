"""Every sampling field is validated, and the error names it as the client wrote it."""

from __future__ import annotations

from typing import Any

import pytest

from twostroke.core.errors import InvalidRequestError
from twostroke.core.sampling_params import SamplingParams


@pytest.mark.parametrize(
    "field, values",
    {
        "n": [0, -1, 129, 1.5, True, "2"],
        "temperature": [-0.1, float("nan"), float("inf"), "1", 101],
        "top_k": [-2, 1.5],
        "top_p": [0, 1.01, float("nan")],
        "min_p": [-0.1, 1.1],
        "repetition_penalty": [0, -1, float("inf"), 5e-324, 0.0099],
        "presence_penalty": [-2.1, 2.1],
        "frequency_penalty": [-2.1, 2.1],
        "seed": [2**64, -(2**63) - 1, 1.0],
        "max_tokens": [0, -1, 2.0],
        "min_tokens": [-1, 17],
        "logprobs": [-1, 21],
        "prompt_logprobs": [-1, 21],
        "stop": ["", ["a"] * 17, [1], 5, ["x" * 1025]],
        "bad_words": ["", [""], 5],
        "stop_token_ids": [[-1], ["a"], 5],
        "banned_token_ids": [[-1], [True]],
        "allowed_token_ids": [[], [-1]],
        "logit_bias": [
            {1: 101},
            {-1: 1},
            {"a": 1},
            {1: float("nan")},
            dict.fromkeys(range(1025), 0.0),
            5,
        ],
    }.items(),
)
def test_out_of_range_is_refused_by_name(field: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(InvalidRequestError) as caught:
            SamplingParams(**{field: value})
        assert caught.value.param == field, value


def test_none_means_the_default() -> None:
    empty: dict[str, Any] = dict.fromkeys(
        ("stop", "bad_words", "stop_token_ids", "banned_token_ids", "logit_bias")
    )
    assert SamplingParams(**empty) == SamplingParams()


def test_a_single_string_is_one_stop_string() -> None:
    assert SamplingParams(stop="end").stop == ("end",)


def test_stop_strings_need_text() -> None:
    with pytest.raises(InvalidRequestError):
        SamplingParams(stop="end", detokenize=False)


@pytest.mark.parametrize("field", ["stop_token_ids", "allowed_token_ids", "banned_token_ids"])
def test_tokens_outside_the_vocabulary_are_refused(field: str) -> None:
    fields: dict[str, Any] = {field: [10]}
    SamplingParams(**fields).check_vocabulary(11)
    with pytest.raises(InvalidRequestError) as caught:
        SamplingParams(**fields).check_vocabulary(10)
    assert caught.value.param == field
