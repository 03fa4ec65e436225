"""The body of a batch is cut into the objects that a JSON parser finds, wherever pieces end."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twostroke.core.errors import InvalidRequestError
from twostroke.server.batches.request_array import RequestArray

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=8,
)
OBJECTS = st.lists(st.dictionaries(st.text(max_size=6), JSON, max_size=3), min_size=1, max_size=6)
SPACES = st.text(alphabet=" \n\t\r", max_size=3)


def cut(text: bytes, places: list[int]) -> list[bytes]:
    ends = sorted({place % (len(text) + 1) for place in places} | {len(text)})
    return [text[start:end] for start, end in zip([0, *ends], ends)]


def read(pieces: list[bytes]) -> tuple[list[bytes], dict[str, object]]:
    array = RequestArray(2**16, 1000)
    objects = [found for piece in pieces for found in array.feed(piece)]
    return objects, array.end()


@given(OBJECTS, SPACES, st.lists(st.integers(0, 2**16), max_size=20), st.booleans(), st.data())
def test_the_objects_are_those_of_a_parser(
    objects: list[Any], space: str, places: list[int], plain: bool, data: st.DataObject
) -> None:
    inner = f"{space},{space}".join(json.dumps(each, ensure_ascii=plain) for each in objects)
    text = f'{space}{{{space}"requests"{space}:{space}[{space}{inner}{space}]{space}}}{space}'
    encoded = text.encode("utf-8", "surrogatepass")
    found, rest = read(cut(encoded, places))
    assert [json.loads(each.decode("utf-8", "surrogatepass")) for each in found] == objects
    assert rest == {}


@given(st.text(alphabet='{}[]",:\\0 a', max_size=40), st.lists(st.integers(0, 40), max_size=8))
def test_any_text_is_read_or_refused(text: str, places: list[int]) -> None:
    """What is taken is what a parser would take."""
    body = f'{{"requests": [{text}'
    try:
        found, _ = read(cut(body.encode(), places))
        assert [json.loads(each) for each in found] == json.loads(body)["requests"]
    except (InvalidRequestError, ValueError):
        with pytest.raises((ValueError, AssertionError)):
            parsed = json.loads(body)["requests"]
            assert all(isinstance(each, dict) for each in parsed) and parsed
            assert len(json.loads(body)) == 1


def test_nothing_beyond_the_limit_is_held() -> None:
    array = RequestArray(100, 1000)
    assert [*array.feed(b'{"requests": [{"a": "')] == []
    with pytest.raises(InvalidRequestError, match=r"requests\[0\] exceeds 100 bytes"):
        [*array.feed(b"x" * 101)]
    array = RequestArray(100, 3)
    with pytest.raises(InvalidRequestError, match="more than 3 requests"):
        [*array.feed(b'{"requests": [{}, {}, {}, {}')]
    array = RequestArray(100, 1000)
    assert [*array.feed(b'{"other": "')] == []
    with pytest.raises(InvalidRequestError, match="too much beside"):
        for _ in range(100):
            [*array.feed(b"x" * 10_000)]
