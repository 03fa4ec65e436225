"""Protects: ``usage`` says how far a prompt was cached, of models with recurrent layers alone."""

from __future__ import annotations

import msgspec

from twostroke.core.prefix_hit import PrefixEnd, PrefixHit
from twostroke.server.generation.response_format import CallTokens
from twostroke.server.openai.usage import make_usage


def test_a_prefix_hit_is_explained() -> None:
    hit = PrefixHit(32, 48, PrefixEnd.NO_CHECKPOINT)
    usage = msgspec.to_builtins(make_usage(CallTokens(60, 4, [32], hit=hit)))
    assert usage["prompt_tokens_details"] == {
        "cached_tokens": 32,
        "prefix_hit": {"state_tokens": 32, "block_tokens": 48, "end": "no_checkpoint"},
    }


def test_of_other_models_it_is_as_it_was() -> None:
    usage = msgspec.to_builtins(make_usage(CallTokens(60, 4, [32])))
    assert usage["prompt_tokens_details"] == {"cached_tokens": 32}
