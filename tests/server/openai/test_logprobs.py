"""``text_offset`` points into the text that is returned, whatever the tokens are pieces of."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.server.http_calls import USER, chat, complete, stream
from tests.server.running import running_server
from tests.server.scripted import Script, ScriptedEngine
from tests.server.tiny import tiny_engine
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


async def test_tokens_named_by_their_ids() -> None:
    """As vLLM writes them: several tokens may have one text."""
    engine = ScriptedEngine()
    fields = {"return_tokens_as_token_ids": True, "return_token_ids": True}
    text = (await complete(engine, logprobs=1, echo=True, **fields))["choices"][0]
    ids = [*text["prompt_token_ids"], *text["token_ids"]]
    assert text["logprobs"]["tokens"] == [f"token_id:{i}" for i in ids]
    assert text["logprobs"]["text_offset"][:2] == [0, 3]
    assert list(text["logprobs"]["top_logprobs"][-1]) == [f"token_id:{ids[-1]}"]
    answer = (await chat(engine, logprobs=True, top_logprobs=1, **fields))["choices"][0]
    entry = answer["logprobs"]["content"][0]
    name = f"token_id:{answer['token_ids'][0]}"
    assert (entry["token"], entry["top_logprobs"][0]["token"]) == (name, name)
    assert bytes(entry["bytes"]) == b"the"


def test_listed_tokens() -> None:
    """In both routes, as many as are listed; they need log-probabilities."""
    listed = [5, 9, 5]
    fields: dict[str, Any] = {"logprob_token_ids": listed, "max_tokens": 2, "temperature": 0}
    fields |= {"return_tokens_as_token_ids": True}
    names = [f"token_id:{token}" for token in listed]
    with tiny_engine() as engine, running_server(engine) as url:

        def post(path: str, **more: Any) -> dict[str, Any]:
            body = {"prompt": "x"} if path == "completions" else {"messages": USER}
            response = httpx.post(f"{url}/v1/{path}", json={**body, **fields, **more}, timeout=60)
            answer: dict[str, Any] = response.json()
            return answer

        content = post("chat/completions", logprobs=True)["choices"][0]["logprobs"]["content"]
        assert all([top["token"] for top in each["top_logprobs"]] == names for each in content)
        answer = post("completions", logprobs=1)["choices"][0]["logprobs"]
        expected = [{*names, token} for token in answer["tokens"]]
        assert [set(top) for top in answer["top_logprobs"]] == expected
        for more in ({}, {"logprobs": True, "logprob_token_ids": [10**6]}):
            assert post("chat/completions", **more)["error"]["param"] == "logprob_token_ids"
