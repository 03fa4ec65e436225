"""Protects: what sliders are put to is the arithmetic of the model, for every kind of attention."""

from __future__ import annotations

import pytest

from twostroke.model_spec.kv_arithmetic import changed_models, kv_arithmetic
from twostroke.model_spec.kv_terms import KVTerm, kv_terms
from twostroke.model_spec.number_formats import CACHE_FORMATS
from twostroke.model_spec.public_models import find_model, public_names


def size(terms: tuple[KVTerm, ...], tokens: int, format_: str) -> float:
    """The formula of the page (``conversation`` in pages/kv_arithmetic.js)."""
    return sum(
        term.count
        * term.bytes_per_token[format_]
        * (tokens if term.window is None else min(tokens, term.window))
        for term in terms
    )


@pytest.mark.parametrize("name", [*public_names(), "pilot"])
def test_terms_give_the_bytes_of_a_conversation(name: str) -> None:
    model = find_model(name)
    terms = kv_terms(name, model)
    for format_ in CACHE_FORMATS:
        for tokens in (1, 100, 5000):
            whole = size(terms.terms, tokens, format_) + terms.state_bytes
            assert whole == pytest.approx(kv_arithmetic(model, tokens, format_).conversation_bytes)
    for variant, (title, changed) in zip(terms.variants, changed_models(model), strict=True):
        assert variant.title == title
        whole = size(variant.terms, 5000, "bf16") + terms.state_bytes
        assert whole == pytest.approx(changed.kv_bytes(5000))


def test_kinds_of_attention_are_told_apart() -> None:
    kinds = {
        name: {term.kind for term in kv_terms(name, find_model(name)).terms}
        for name in ("llama-2-7b", "llama-3.1-8b", "deepseek-v3", "mamba-codestral-7b")
    }
    assert list(kinds.values()) == [{"MHA"}, {"GQA"}, {"MLA"}, set()]
    windows = [term.window for term in kv_terms("", find_model("gpt-oss-20b")).terms]
    assert None in windows
    assert 128 in windows
