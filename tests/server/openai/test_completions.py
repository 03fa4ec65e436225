"""Text completions: prompts in their four forms, echo, log-probabilities."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.server.http_calls import any_engine, complete, post, stream
from tests.server.scripted import ScriptedEngine

TEXT = "the quick brown fox"


async def test_whole_answer() -> None:
    engine = ScriptedEngine()
    answer = await complete(engine)
    assert answer["object"] == "text_completion"
    choice = answer["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["logprobs"]) == (TEXT, "stop", None)
    assert engine.submitted[0].params.max_tokens == 16


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("the dog", ["the dog"]),
        (["the dog", "the fox"], ["the dog", "the fox"]),
        ([84, 85], [[84, 85]]),
        ([[84], [85, 86]], [[84], [85, 86]]),
    ],
)
async def test_forms_of_prompts(prompt: object, expected: list[object]) -> None:
    engine = ScriptedEngine()
    answer = await complete(engine, prompt=prompt, n=2)
    wanted: list[Any] = [engine.tokenizer.encode(p) if isinstance(p, str) else p for p in expected]
    assert [request.prompt_token_ids for request in engine.submitted] == wanted
    assert [choice["index"] for choice in answer["choices"]] == list(range(2 * len(expected)))
    assert answer["usage"]["prompt_tokens"] == sum(len(tokens) for tokens in wanted)
    assert answer["usage"]["completion_tokens"] == 8 * len(expected)


async def test_stream_of_several_prompts() -> None:
    events = await stream(
        ScriptedEngine(), "completions", {"prompt": ["the", "fox"], "n": 2, "max_tokens": 2}
    )
    texts = ["", "", "", ""]
    for event in events:
        choice = event["choices"][0]
        texts[choice["index"]] += choice["text"]
    assert texts == ["the quick "] * 4


async def test_echo() -> None:
    assert (await complete(ScriptedEngine(), echo=True))["choices"][0]["text"] == "the dog" + TEXT
    events = await stream(ScriptedEngine(), "completions", {"prompt": "the dog", "echo": True})
    assert "".join(event["choices"][0]["text"] for event in events) == "the dog" + TEXT
    tokens = ScriptedEngine().tokenizer.encode("the dog")
    assert (await complete(ScriptedEngine(), prompt=tokens, echo=True))["choices"][0][
        "text"
    ] == "the dog" + TEXT


@pytest.mark.parametrize("prompt", [[-1], [5, 2**70], [[5], [340]], [-1] * 200, [1] * 200])
async def test_what_cannot_be_echoed(prompt: list[Any]) -> None:
    """Its text was looked up before the check that there is none."""
    response = await post(any_engine(), "completions", {"prompt": prompt, "echo": True})
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == "prompt"


async def test_many_prompts_let_others_have_their_turn() -> None:
    """256 of 20,000 characters are encoded on the event loop, 10 ms each."""
    turns, done = 0, asyncio.Event()

    async def other() -> None:
        nonlocal turns
        while not done.is_set():
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.ensure_future(other())
    await complete(ScriptedEngine(), prompt=["x"], max_tokens=1)
    alone = turns
    await complete(ScriptedEngine(), prompt=["x"] * 200, max_tokens=1, stream=False)
    done.set()
    await task
    assert turns - alone > alone + 150


async def test_logprobs() -> None:
    answer = await complete(ScriptedEngine(), logprobs=2)
    logprobs = answer["choices"][0]["logprobs"]
    assert logprobs["token_logprobs"] == [-0.5] * 4
    assert logprobs["tokens"][0] == "the"
    assert logprobs["text_offset"][:2] == [0, 3]
    assert len(logprobs["top_logprobs"][0]) == 2
    events = await stream(ScriptedEngine(), "completions", {"prompt": "the dog", "logprobs": 2})
    streamed = [event["choices"][0]["logprobs"] for event in events[:-1]]
    assert [offset for piece in streamed for offset in piece["text_offset"]] == logprobs[
        "text_offset"
    ]


async def test_scoring_a_text() -> None:
    """``echo`` with ``max_tokens=0`` returns log-probabilities and generates nothing."""
    answer = await complete(ScriptedEngine(), echo=True, logprobs=1, max_tokens=0)
    choice = answer["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("the dog", "length")
    assert choice["logprobs"]["tokens"] == ["the", " dog"]
    assert choice["logprobs"]["token_logprobs"] == [None, -0.5]
    assert choice["logprobs"]["text_offset"] == [0, 3]
    assert answer["usage"]["completion_tokens"] == 0


async def test_echoed_logprobs_cover_prompt_and_answer() -> None:
    answer = await complete(ScriptedEngine(), echo=True, logprobs=1, n=2)
    for choice in answer["choices"]:
        assert len(choice["logprobs"]["tokens"]) == 2 + 4
    assert answer["choices"][0]["prompt_logprobs"] is None


async def test_token_ids() -> None:
    engine = ScriptedEngine()
    choice = (await complete(engine, return_token_ids=True))["choices"][0]
    assert choice["prompt_token_ids"] == engine.submitted[0].prompt_token_ids
    body = {"prompt": "the dog", "return_token_ids": True}
    events = await stream(ScriptedEngine(), "completions", body)
    pieces = [event["choices"][0].get("token_ids") for event in events]
    assert pieces[-1] is not None and [t for p in pieces for t in p or ()] == choice["token_ids"]
    assert len(choice["token_ids"]) == 4
