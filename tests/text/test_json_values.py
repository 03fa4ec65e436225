"""JSON values: which are large, and that a large one is written like a small one."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twostroke.text.json_values import MANY_CHARS, MANY_VALUES, is_large, json_pieces

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(JSON, st.sampled_from([{}, {"indent": 2}, {"ensure_ascii": True}, {"sort_keys": True}]))
def test_a_large_value_is_written_as_a_small_one(value: Any, options: dict[str, Any]) -> None:
    for written in (value, [value] * MANY_VALUES):
        expected = json.dumps(written, **{"ensure_ascii": False, **options})
        assert "".join(json_pieces(written, **options)) == expected
    assert sum(1 for _ in json_pieces([value] * MANY_VALUES)) > MANY_VALUES


@pytest.mark.parametrize(
    "value",
    [
        ["x"] * MANY_VALUES,
        {"x" * (MANY_CHARS + 1): 1},
        {"a": "x" * (MANY_CHARS + 1)},
        [["x"] * 20] * 20,
        {str(i): i for i in range(MANY_VALUES + 1)},
    ],
)
def test_what_is_large(value: Any) -> None:
    assert is_large(value) and not is_large([1, "x" * 99, {"a": [None] * 99}])
