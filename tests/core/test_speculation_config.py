"""Protects: `--speculation` and vLLM's `--speculative-config` mean one thing, or are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from twostroke.core.config import EngineConfig
from twostroke.core.errors import ConfigError
from twostroke.core.speculation_config import Speculation, SpeculationConfig


def resolve(**settings: Any) -> Speculation:
    speculation = SpeculationConfig(speculative_config=json.dumps(settings)).resolve()
    assert speculation is not None
    return speculation


def test_without_flags_nothing_is_guessed() -> None:
    assert EngineConfig().speculation.resolve() is None


@pytest.mark.parametrize("method", ["ngram", "suffix", "draft", "early-exit", "medusa", "mtp"])
def test_the_short_flag_and_the_long_one_agree(method: Any) -> None:
    short = SpeculationConfig(speculation=method).resolve()
    assert short == resolve(method=method)
    assert short is not None
    assert 1 <= short.num_speculative_tokens <= 16
    assert short.writes_kv == (method in ("draft", "early-exit", "mtp"))


def test_settings_under_the_names_of_vllm() -> None:
    assert resolve(method="ngram", num_speculative_tokens=5, prompt_lookup_max=4) == Speculation(
        method="ngram", num_speculative_tokens=5, max_match=4
    )
    assert resolve(model="pilot-draft", num_speculative_tokens=3) == Speculation(
        method="draft", num_speculative_tokens=3, model="pilot-draft"
    )
    suffix = resolve(method="suffix", suffix_decoding_max_tree_depth=9)
    assert suffix.max_match == 9


def test_python_callers_may_give_a_mapping() -> None:
    settings = {"method": "synthetic", "acceptance_rate": 0.5}
    config = EngineConfig.from_flat({"speculative_config": settings})
    speculation = config.speculation.resolve()
    assert speculation is not None
    assert (speculation.method, speculation.acceptance_rate) == ("synthetic", 0.5)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ("{", "is no JSON"),
        ("[]", "must be a JSON object"),
        ("{}", "must be a JSON object"),
        ('{"num_speculative_tokens": 3}', "method must be one of"),
        ('{"method": "eagle"}', "method must be one of"),
        ('{"method": ["ngram"]}', "method must be one of"),
        ('{"method": "ngram", "depth": 3}', "unknown setting 'depth'"),
        ('{"method": "ngram", "num_speculative_tokens": 0}', "from 1 to 64"),
        ('{"method": "ngram", "num_speculative_tokens": true}', "from 1 to 64"),
        ('{"method": "ngram", "model": "pilot-draft"}', "model belongs to method draft or medusa"),
        ('{"method": "draft", "exit_layer": 2}', "exit_layer belongs to method early-exit"),
        ('{"method": "synthetic", "acceptance_rate": 1.5}', "from 0 to 1"),
        ('{"method": "medusa", "exit_layer": 2}', "exit_layer belongs to method early-exit"),
    ],
)
def test_what_makes_no_sense_is_refused_with_a_hint(settings: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        SpeculationConfig(speculative_config=settings)
    assert caught.value.hint


def test_two_methods_are_one_too_many() -> None:
    with pytest.raises(ConfigError, match="--speculation is suffix, but"):
        SpeculationConfig(speculation="suffix", speculative_config='{"method": "ngram"}')
