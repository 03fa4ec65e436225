"""Request bodies: UTF-8 alone, and a bounded number of values, keys and lists."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.server.http_calls import any_engine, client_for, post
from tests.server.scripted import Script, ScriptedEngine
from twostroke.core.errors import InvalidRequestError
from twostroke.http.body_size import SMALL_BODY
from twostroke.server.http import body_json
from twostroke.server.http.body_json import (
    MAX_CONTAINERS,
    MAX_KEYS,
    MAX_VALUES,
    max_values,
    parse_body,
)

TEXT = '{"prompt": "the dog"}'
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-be"])
async def test_bodies_in_other_encodings(encoding: str) -> None:
    """Python reads them as JSON, and their brackets are other bytes than the counted ones."""
    for body in (TEXT, '{"prompt": [' + "[]," * 10_000 + "[]]}"):
        response = await post(any_engine(), "completions", body.encode(encoding))
        assert response.status_code == 400
        assert "not valid JSON" in response.json()["error"]["message"]


async def test_a_zero_byte_ends_the_reading() -> None:
    """A flood of large bodies in UTF-16 doubled everyone's TTFT: each was received whole first."""
    num_sent = 0

    async def chunks() -> AsyncIterator[bytes]:
        nonlocal num_sent
        for _ in range(20):
            num_sent += 1
            yield ("[" * SMALL_BODY).encode("utf-16")

    async with client_for(any_engine()) as client:
        headers = {"content-type": "application/json"}
        response = await client.post("/v1/completions", content=chunks(), headers=headers)
    assert (response.status_code, num_sent) == (400, 1)


@pytest.mark.parametrize("body", [b'{"prompt": "\xff"}', b'{"prompt": "\xed\xa0\x80"}'])
async def test_bytes_that_are_no_utf_8(body: bytes) -> None:
    assert (await post(any_engine(), "completions", body)).status_code == 400


async def test_a_byte_order_mark_is_no_part_of_the_body() -> None:
    """As some clients on Windows send it."""
    body = b"\xef\xbb\xbf" + TEXT.encode()
    assert (await post(any_engine(), "completions", body)).status_code == 200


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ('{"prompt":[' + "0.5," * (MAX_VALUES + 1) + "1]}", f"{MAX_VALUES} values"),
        ('{"prompt":[[' + "1," * (MAX_VALUES + 1) + "1]]}", f"{MAX_VALUES} values"),
        (json.dumps({str(i): 0 for i in range(MAX_KEYS + 1)}), f"{MAX_KEYS} keys"),
        ("[" * (MAX_CONTAINERS + 1), f"{MAX_CONTAINERS} lists and objects"),
    ],
)
async def test_too_many_of_anything(body: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused before the parser makes an object of each."""
    monkeypatch.setattr(body_json, "json", None)
    response = await post(any_engine(), "completions", body)
    assert response.status_code == 400
    message = f"the body holds more than {name}. Hint: send fewer"
    assert response.json()["error"]["message"] == message


def test_a_long_context_has_room_for_its_token_ids() -> None:
    assert max_values(4096) == MAX_VALUES
    body = b"[" + b"1," * MAX_VALUES + b"1]"
    assert len(parse_body(body, max_values(MAX_VALUES))) == MAX_VALUES + 1


async def test_the_limit_follows_the_model() -> None:
    body = '{"max_tokens":1,"prompt":[' + "12," * MAX_VALUES + "12]}"
    engine = ScriptedEngine(Script(max_model_len=2 * MAX_VALUES))
    assert (await post(engine, "completions", body)).status_code == 200


@pytest.mark.parametrize("text", ['"', "\\", '\\"', ",", "{", ":", 'a\\"[', "\\\\", "\u4e00,"])
@pytest.mark.parametrize("lead", range(3))
def test_marks_in_texts_do_not_count(text: str, lead: int) -> None:
    """Wherever the pieces are cut that are looked through."""
    value = [" " * lead + text * 300_000, {"a": text}]
    assert parse_body(json.dumps(value, ensure_ascii=False).encode(), 8) == value


@given(value=JSON, piece=st.integers(1, 9), lead=st.text(alphabet='"\\,:[{a', max_size=4))
def test_marks_are_counted_as_the_parser_sees_them(value: Any, piece: int, lead: str) -> None:
    body = json.dumps([lead, value]).encode()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(body_json, "_PIECE", piece)
        outside = b"".join(body_json._without_texts(body))
    num_lists, num_keys, num_commas = _counts([lead, value])
    assert outside.count(b"[") + outside.count(b"{") == num_lists
    assert (outside.count(b":"), outside.count(b",")) == (num_keys, num_commas)


def _counts(value: Any) -> tuple[int, int, int]:
    """Lists and objects, keys, and commas of a value."""
    if not isinstance(value, (list, dict)):
        return 0, 0, 0
    inner = [_counts(item) for item in (value.values() if isinstance(value, dict) else value)]
    sums = [sum(counts) for counts in zip(*inner, strict=True)] or [0, 0, 0]
    num_keys = len(value) if isinstance(value, dict) else 0
    return 1 + sums[0], num_keys + sums[1], max(0, len(value) - 1) + sums[2]


@given(JSON)
def test_a_large_body_is_parsed_as_a_small_one(value: Any) -> None:
    body = json.dumps([value]).encode()
    large = parse_body(body.ljust(SMALL_BODY + 1), MAX_VALUES)
    assert repr(large) == repr(parse_body(body, MAX_VALUES)) == repr([value])


def test_numbers_of_a_large_body() -> None:
    padding = b" " * SMALL_BODY
    assert parse_body(b"[1e2, -0, 0.1, NaN]" + padding, 9)[:3] == [100.0, 0, 0.1]
    with pytest.raises(ValueError, match="digits"):
        parse_body(b"[" + b"9" * 4301 + b"]" + padding, 9)
    with pytest.raises(InvalidRequestError, match="'a' twice"):
        parse_body(b'{"a": 1, "a": 2}' + padding, 9)
