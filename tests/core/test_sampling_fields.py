"""Each sampling field declares what it takes, and its message says so in the same words."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from twostroke.core.errors import InvalidRequestError
from twostroke.core.flags.declared import declarations
from twostroke.core.sampling_params import RANGES, SamplingParams

MESSAGES: list[tuple[dict[str, Any], str]] = [
    ({"n": 129}, "n must be an integer from 1 to 128, got 129"),
    ({"temperature": -0.1}, "temperature must be in [0, 100], got -0.1"),
    ({"top_k": -2}, "top_k must be -1 or 0 (all), or a positive integer, got -2"),
    ({"top_p": 0}, "top_p must be in (0, 1], got 0"),
    ({"min_p": True}, "min_p must be in [0, 1], got True"),
    ({"repetition_penalty": 0.0099}, "repetition_penalty must be in [0.01, 100], got 0.0099"),
    ({"presence_penalty": 3}, "presence_penalty must be in [-2, 2], got 3"),
    ({"frequency_penalty": "1"}, "frequency_penalty must be in [-2, 2], got '1'"),
    ({"seed": 10**5000}, "seed must be a 64-bit integer, got a huge number"),
    ({"logprobs": 21}, "logprobs must be an integer from 0 to 20, got 21"),
    ({"prompt_logprobs": -1}, "prompt_logprobs must be an integer from 0 to 20, got -1"),
    ({"speculation": 65}, "speculation must be an integer from 0 to 64, got 65"),
    ({"distribution": 0}, "distribution must be an integer from 1 to 256, got 0"),
    ({"max_tokens": 0}, "max_tokens must be a positive integer, got 0"),
    ({"min_tokens": -1}, "min_tokens must be 0 or more, got -1"),
    ({"min_tokens": 17}, "min_tokens must be at most max_tokens (16), got 17"),
    ({"answer_tokens_in_prompt": None}, "answer_tokens_in_prompt must be 0 or more, got None"),
    (
        {"thinking_token_budget": -2},
        "thinking_token_budget must be -1 (no bound), 0 or more, got -2",
    ),
    (
        {"stop": ["a", ""]},
        "stop must be at most 16 non-empty strings of at most 1024 characters, got ''",
    ),
    (
        {"bad_words": 5},
        "bad_words must be at most 256 non-empty strings of at most 1024 characters, got 5",
    ),
    ({"stop_token_ids": [-1]}, "stop_token_ids must be a list of token ids, got [-1]"),
    ({"banned_token_ids": [True]}, "banned_token_ids must be a list of token ids, got [True]"),
    ({"allowed_token_ids": []}, "allowed_token_ids must be a non-empty list of token ids, got []"),
    (
        {"logprobs": 1, "logprob_token_ids": ["a"]},
        "logprob_token_ids must be a list of token ids, got ['a']",
    ),
    (
        {"logit_bias": {5: 1.0, 1: 101}},
        "logit_bias must be at most 1024 token ids with values in [-100, 100], got {1: 101}",
    ),
    (
        {"structured_outputs": "a" * 99},
        "structured_outputs must be a StructuredOutputsParams, or a dict of its fields, got '"
        + "a" * 99
        + "...",
    ),
]


@pytest.mark.parametrize("given, message", MESSAGES, ids=[m for _, m in MESSAGES])
def test_a_message_says_what_is_taken(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        SamplingParams(**given)
    assert str(caught.value) == message


def test_of_several_faults_the_first_is_named() -> None:
    """In the order of ``RANGES``, then words, form, tokens and biases."""
    faults = {next(iter(given)): given for given, _ in reversed(MESSAGES)}
    order = [*RANGES, "thinking_token_budget", "stop", "bad_words", "structured_outputs"]
    order += ["stop_token_ids", "banned_token_ids", "allowed_token_ids", "logit_bias"]
    for index, name in enumerate(order):
        rest = {key: value for each in order[index:] for key, value in faults[each].items()}
        with pytest.raises(InvalidRequestError) as caught:
            SamplingParams(**{**rest, **faults[name]})
        assert caught.value.param == name


def test_each_field_declares_what_it_takes() -> None:
    declared = declarations(SamplingParams)
    asked = {field.name for field in fields(SamplingParams) if field.init}
    silent = {name for name in asked if not declared[name].notes}
    assert all(declared[name].kinds == (bool,) for name in silent), silent
