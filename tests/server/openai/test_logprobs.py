"""``text_offset`` points into the text that is returned, whatever the tokens are pieces of."""

from __future__ import annotations

import pytest

from tests.server.http_calls import complete, stream
from tests.server.scripted import Script, ScriptedEngine
from tests.text.tiny_tokenizers import byte_fallback, byte_level
from twostroke.server.openai.logprobs import TextOffsets
from twostroke.text.tokenizer import Tokenizer

PROMPT = "the 👩 dog, 世 the dog"


def token_id(tokenizer: Tokenizer, piece: str) -> int:
    token_id = tokenizer.backend.token_to_id(piece)
    assert token_id is not None
    return token_id


def offsets(tokenizer: Tokenizer, tokens: list[int], text: str | None = None) -> list[int]:
    places = TextOffsets(tokenizer, text=text)
    return [places.next(token) for token in tokens]


def test_tokens_within_a_character_begin_where_it_does() -> None:
    tokenizer = Tokenizer(byte_level())
    tokens = tokenizer.encode(PROMPT)
    assert any("\ufffd" in tokenizer.token_text(token) for token in tokens)
    for place, token in zip(offsets(tokenizer, tokens), tokens, strict=True):
        text = tokenizer.token_text(token)
        if "\ufffd" not in text:
            assert PROMPT[place : place + len(text)] == text
    assert offsets(tokenizer, [*tokens, tokens[0]])[-1] == len(PROMPT)


def test_special_tokens_count_where_they_are_in_the_text() -> None:
    tokenizer = Tokenizer(byte_level())
    end = token_id(tokenizer, "<|end|>")
    the = tokenizer.encode("the")[0]
    assert offsets(tokenizer, [end, the, end, the]) == [0, 0, 3, 3]
    assert offsets(tokenizer, [end, the, end, the], text="the<|end|>the") == [0, 0, 3, 10]
    shown = TextOffsets(tokenizer, 5, skip_special_tokens=False)
    assert [shown.next(token) for token in (end, the, end)] == [5, 12, 15]


def test_the_space_before_the_first_word_counts_only_if_it_is_there() -> None:
    tokenizer = Tokenizer(byte_fallback())
    the, dog = (token_id(tokenizer, piece) for piece in ("▁the", "▁do"))
    assert offsets(tokenizer, [the, dog], text="the do") == [0, 3]
    assert offsets(tokenizer, [the, dog], text=" the do") == [0, 4]


@pytest.mark.parametrize("prompt_as_tokens", [False, True])
async def test_an_echoed_answer_begins_behind_the_prompt(prompt_as_tokens: bool) -> None:
    engine = ScriptedEngine()
    tokens = engine.tokenizer.encode(PROMPT)
    prompt = tokens if prompt_as_tokens else PROMPT
    choice = (await complete(engine, prompt=prompt, echo=True, logprobs=0, max_tokens=2))[
        "choices"
    ][0]
    assert choice["text"].startswith(PROMPT)
    assert choice["logprobs"]["text_offset"][len(tokens)] == len(PROMPT)


async def test_streamed_offsets_are_the_same() -> None:
    """A character that two chunks share begins once."""
    engine = ScriptedEngine(Script(pieces=("👩", "世", "the", "世", " dog")))
    whole = (await complete(engine, logprobs=0, max_tokens=5))["choices"][0]["logprobs"][
        "text_offset"
    ]
    events = await stream(engine, "completions", {"prompt": "x", "logprobs": 0, "max_tokens": 5})
    pieces = [event["choices"][0]["logprobs"] for event in events]
    assert [place for piece in pieces if piece for place in piece["text_offset"]] == whole


@pytest.mark.parametrize("skip", [True, False])
async def test_an_echo_of_tokens_shows_special_ones_where_asked_to(skip: bool) -> None:
    engine = ScriptedEngine()
    end = token_id(engine.tokenizer, "<|end|>")
    prompt = [*engine.tokenizer.encode("the"), end, *engine.tokenizer.encode(" dog")]
    answer = await complete(
        engine, prompt=prompt, echo=True, skip_special_tokens=skip, max_tokens=1
    )
    assert answer["choices"][0]["text"].startswith("the dog" if skip else "the<|end|> dog")
