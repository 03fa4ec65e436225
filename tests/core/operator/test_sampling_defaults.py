"""``--override-generation-config``: what it sets, what it bounds, and what it refuses by name."""

from __future__ import annotations

import json

import pytest

from twostroke.core.config import ModelOptions
from twostroke.core.errors import ConfigError
from twostroke.core.operator.sampling_defaults import read_overrides


def test_overrides_stand_above_the_models_own() -> None:
    given = read_overrides('{"temperature": 0.25, "top_k": null, "max_new_tokens": 9}')
    own = {"temperature": 0.6, "top_k": 20, "min_p": 0.1}
    assert given.over(own) == {"temperature": 0.25, "min_p": 0.1} and given.max_new_tokens == 9
    assert read_overrides(None) == ({}, None) and read_overrides({"top_p": 0.5}).over({})


@pytest.mark.parametrize(
    ("value", "message", "hint"),
    [
        ("{temperature: 1}", "--override-generation-config is no JSON", '{"temperature": 0.7'),
        ("[1]", "--override-generation-config must be a JSON object", '{"temperature": 0.7'),
        ("[" * 100_000, "--override-generation-config is no JSON", '{"temperature": 0.7'),
        ({"temprature": 1}, "'temprature' is not read", "did you mean temperature?"),
        ({"do_sample": True}, "'do_sample' is not read", "known: temperature, top_k"),
        ({"temperature": -1}, "temperature must be", ""),
        ({"max_new_tokens": 0}, "max_new_tokens must be", ""),
        ({"max_new_tokens": "9"}, "max_new_tokens must be", ""),
    ],
)
def test_what_is_wrong_is_named_at_start(value: object, message: str, hint: str) -> None:
    text = value if isinstance(value, str) else json.dumps(value)
    with pytest.raises(ConfigError) as caught:
        ModelOptions(override_generation_config=text)
    assert message in caught.value.message and hint in (caught.value.hint or "")
    assert len(caught.value.message) < 300 and caught.value.hint
