"""Protects: every claim has a name, a text and a source of its own, and is found by its name."""

from __future__ import annotations

import re

import pytest

from twostroke.core.errors import ConfigError
from twostroke.lab.registry import CLAIMS, find_claims


def test_claims_are_told_apart() -> None:
    assert len({claim.name for claim in CLAIMS}) == len({claim.text for claim in CLAIMS}) == 19
    for claim in CLAIMS:
        assert re.fullmatch(r"[a-z-]+", claim.name)
        assert claim.text.endswith(".") and claim.source and not claim.source.endswith(".")


def test_names_in_the_order_given_each_once() -> None:
    names = [claim.name for claim in find_claims(["paging", "speculation", "paging"])]
    assert names == ["paging", "speculation"]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("decode-celing", "did you mean decode-ceiling?"),
        ("PAGING", "did you mean paging?"),
        ("qqq", "twostroke lab lists them"),
    ],
)
def test_an_unknown_name_has_a_near_one(name: str, hint: str) -> None:
    with pytest.raises(ConfigError) as raised:
        find_claims([name])
    assert raised.value.message == f"no claim {name!r}" and raised.value.hint == hint
