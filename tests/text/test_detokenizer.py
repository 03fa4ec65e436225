"""Streamed text against `decode` of everything, for random tokens on every kind of tokenizer."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.text.tiny_tokenizers import KINDS, id_of
from twostroke.core.errors import EngineError
from twostroke.text.detokenizer import IncrementalDetokenizer
from twostroke.text.tokenizer import Tokenizer


@cache
def tokenizer(kind: str) -> Tokenizer:
    return Tokenizer(KINDS[kind]())


def stream(
    kind: str, ids: list[int], sizes: list[int], skip: bool, context: tuple[int, ...] = ()
) -> list[str]:
    detokenizer = IncrementalDetokenizer(tokenizer(kind), skip, context_ids=context)
    pieces, at = [], 0
    for size in [*sizes, len(ids)]:
        pieces.append(detokenizer.push(ids[at : at + size]))
        at += size
    return [*pieces, detokenizer.finish()]


sizes = st.lists(st.integers(0, 3), max_size=40)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=150, deadline=None)
@given(data=st.data(), sizes=sizes, skip=st.booleans())
def test_joined_stream_equals_decode(
    kind: str, data: st.DataObject, sizes: list[int], skip: bool
) -> None:
    # Half of the draws come from the low ids, where bytes, special and odd tokens are; some lie
    # outside.
    token = st.integers(0, tokenizer(kind).vocab_size + 2) | st.integers(0, 20)
    ids = data.draw(st.lists(token | st.sampled_from(range(259, 272)), max_size=40))
    assert "".join(stream(kind, ids, sizes, skip)) == tokenizer(kind).decode(
        ids, skip_special_tokens=skip
    )


@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback", "nested_byte_level"])
@settings(max_examples=100, deadline=None)
@given(text=st.text(alphabet="ab é你👩‍🚀ß", max_size=20))
def test_characters_are_never_split(kind: str, text: str) -> None:
    ids = tokenizer(kind).encode(text)
    pieces = stream(kind, ids, [1] * len(ids), True)
    assert "\ufffd" not in "".join(pieces)


def test_held_character_comes_with_its_last_byte() -> None:
    raw = [id_of(tokenizer("byte_level").backend, c) for c in "ðŁĳ©"]  # the bytes of one emoji
    assert [p for p in stream("byte_level", raw, [1, 1, 1, 1], True) if p] == ["👩"]


def test_incomplete_character_at_the_end_is_as_decode_gives_it() -> None:
    raw = [id_of(tokenizer("byte_level").backend, c) for c in "ðŁĳ"]
    assert stream("byte_level", raw, [1, 1, 1], True) == ["", "", "", "", "\ufffd"]


def test_byte_fallback_run_is_held_until_it_ends() -> None:
    backend = tokenizer("byte_fallback").backend
    ids = [id_of(backend, t) for t in ("<0xE4>", "<0xBD>", "<0xA0>", "a")]
    assert stream("byte_fallback", ids, [1] * 4, True)[:4] == ["", "", "", "你a"]
    spoiled = [*ids[:3], id_of(backend, "<0xFF>"), ids[3]]
    assert "".join(stream("byte_fallback", spoiled, [1] * 5, True)) == "\ufffd" * 4 + "a"


def test_a_window_never_starts_with_stripped_spaces_alone() -> None:
    ids = [id_of(tokenizer("strips_three").backend, t) for t in ("the", "▁", "▁do")]
    assert stream("strips_three", ids, [1] * 3, True)[:3] == ["the", " ", " do"]


@pytest.mark.parametrize("kind", ["byte_fallback", "metaspace"])
def test_context_keeps_the_leading_space(kind: str) -> None:
    ids = [id_of(tokenizer(kind).backend, t) for t in ("the", "▁do", "g")]
    assert "".join(stream(kind, ids[1:], [1, 1], True)) == "dog"
    assert "".join(stream(kind, ids[1:], [1, 1], True, context=(ids[0],))) == " dog"


def test_context_that_ends_inside_a_character_is_not_repeated() -> None:
    backend = tokenizer("byte_fallback").backend
    context = tuple(id_of(backend, t) for t in ("the", "<0xE4>", "<0xBD>"))
    assert (
        "".join(stream("byte_fallback", [id_of(backend, "a")], [1], True, context=context)) == "a"
    )


class Counting(Tokenizer):
    decoded = 0

    def decode(self, ids: object, skip_special_tokens: bool = True) -> str:
        self.decoded += len(ids)  # type: ignore[arg-type]
        return super().decode(ids, skip_special_tokens)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback", "metaspace", "wordpiece"])
def test_cost_is_linear(kind: str) -> None:
    counting = Counting(KINDS[kind]())
    detokenizer = IncrementalDetokenizer(counting)
    for step in range(1000):
        detokenizer.push([5 + step % 6])
    detokenizer.finish()
    assert counting.decoded <= 5 * 1000


def test_push_after_finish_is_refused() -> None:
    detokenizer = IncrementalDetokenizer(tokenizer("byte_level"))
    assert detokenizer.finish() == detokenizer.finish() == ""
    with pytest.raises(EngineError):
        detokenizer.push([1])
