"""Chat completions: the shapes of answers, streamed and whole."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.server.http_calls import USER, chat, post, stream
from tests.server.scripted import Script, ScriptedEngine
from twostroke.core.config import SchedulerConfig
from twostroke.core.request import FinishReason
from twostroke.text.chat_encoder import ChatEncoder

TEXT = "the quick brown fox"


async def test_whole_answer() -> None:
    engine = ScriptedEngine(Script(cached_tokens=3, stop_reason="END"))
    answer = await chat(engine)
    assert answer["object"] == "chat.completion"
    assert answer["id"].startswith("chatcmpl-")
    assert answer["model"] == "scripted"
    choice = answer["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": TEXT, "refusal": None}
    assert (choice["finish_reason"], choice["stop_reason"], choice["logprobs"]) == (
        "stop",
        "END",
        None,
    )
    prompt = len(engine.submitted[0].prompt_token_ids)
    assert answer["usage"] == {
        "prompt_tokens": prompt,
        "completion_tokens": 4,
        "total_tokens": prompt + 4,
        "prompt_tokens_details": {"cached_tokens": 3},
    }


async def test_stream_says_the_role_first_and_the_reason_last() -> None:
    events = await stream(ScriptedEngine(), "chat/completions", {"messages": USER})
    deltas = [event["choices"][0]["delta"] for event in events]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert "".join(delta["content"] for delta in deltas[:-1]) == TEXT
    assert deltas[-1] == {}  # llama.cpp's clients expect no text beside the reason
    assert [event["choices"][0]["finish_reason"] for event in events] == [None] * 5 + ["stop"]
    assert {event["object"] for event in events} == {"chat.completion.chunk"}
    assert len({event["id"] for event in events}) == 1
    assert all("usage" not in event for event in events)


async def test_stream_usage_comes_in_a_chunk_of_its_own() -> None:
    body = {"messages": USER, "stream_options": {"include_usage": True}}
    *events, last = await stream(ScriptedEngine(), "chat/completions", body)
    assert all(event["usage"] is None for event in events)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 4


async def test_text_that_is_held_back_makes_no_event() -> None:
    engine = ScriptedEngine(Script(pieces=("the ", "", "fox")))
    events = await stream(engine, "chat/completions", {"messages": USER})
    assert [event["choices"][0]["delta"].get("content") for event in events] == [
        "",
        "the ",
        "fox",
        None,
    ]


async def test_samples_have_their_index() -> None:
    answer = await chat(ScriptedEngine(), n=3)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert answer["usage"]["completion_tokens"] == 12
    events = await stream(ScriptedEngine(), "chat/completions", {"messages": USER, "n": 2})
    for index in (0, 1):
        choices = [event["choices"][0] for event in events if event["choices"][0]["index"] == index]
        assert choices[0]["delta"]["role"] == "assistant"
        assert "".join(choice["delta"].get("content", "") for choice in choices) == TEXT


async def test_logprobs() -> None:
    answer = await chat(ScriptedEngine(), logprobs=True, top_logprobs=2)
    entries = answer["choices"][0]["logprobs"]["content"]
    assert len(entries) == 4
    assert entries[0]["token"] == "the"
    assert bytes(entries[0]["bytes"]) == b"the"
    assert [top["logprob"] for top in entries[0]["top_logprobs"]] == [-0.5, -1.5]
    plain = (await chat(ScriptedEngine(), logprobs=True))["choices"][0]["logprobs"]["content"]
    assert plain[0]["top_logprobs"] == []


async def test_token_ids_and_prompt_logprobs() -> None:
    engine = ScriptedEngine()
    answer = await chat(engine, return_token_ids=True, prompt_logprobs=1)
    prompt = engine.submitted[0].prompt_token_ids
    assert answer["prompt_token_ids"] == prompt
    assert len(answer["choices"][0]["token_ids"]) == 4
    events = await stream(
        ScriptedEngine(), "chat/completions", {"messages": USER, "return_token_ids": True}
    )
    pieces = [event["choices"][0].get("token_ids") for event in events]
    assert events[-1]["choices"][0]["finish_reason"] == "stop" and pieces[-1] is not None
    assert [t for piece in pieces for t in piece or ()] == answer["choices"][0]["token_ids"]
    assert answer["prompt_logprobs"][0] is None
    assert [set(entry) for entry in answer["prompt_logprobs"][1:]] == [
        {str(token)} for token in prompt[1:]
    ]


async def test_prompt_is_the_rendered_template() -> None:
    engine = ScriptedEngine()
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    echoed: dict[str, object] = {
        "role": "assistant",
        "content": "yes",
        "refusal": None,
        "tool_calls": None,
        "annotations": [],
    }
    await chat(engine, messages=[{"role": "developer", "content": parts}, echoed])
    await chat(engine, messages=[*USER, echoed], continue_final_message=True)
    await chat(engine, truncate_prompt_tokens=5)
    texts = [engine.tokenizer.decode(request.prompt_token_ids) for request in engine.submitted]
    assert texts[:2] == [
        "system: a\nb\nassistant: yes\nassistant: ",
        "user: the dog\nassistant: yes",
    ]
    assert len(engine.submitted[2].prompt_token_ids) == 5


async def test_sampling_fields_reach_the_engine() -> None:
    engine = ScriptedEngine(scheduler_config=SchedulerConfig(policy="priority"))
    given = {
        "n": 2,
        "temperature": 0.5,
        "top_k": 3,
        "top_p": 0.9,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.3,
        "seed": 7,
        "max_tokens": 9,
        "min_tokens": 1,
        "stop_token_ids": [5],
        "ignore_eos": True,
        "allowed_token_ids": [1, 2],
        "banned_token_ids": [3],
        "bad_words": ["x"],
        "skip_special_tokens": False,
        "include_stop_str_in_output": True,
    }
    await chat(
        engine, **given, stop="END", logit_bias={"4": 1.5}, priority=-1, cache_salt="me", user="u"
    )
    request = engine.submitted[0]
    for name, value in given.items():
        value_sent = getattr(request.params, name)
        assert (list(value_sent) if isinstance(value_sent, tuple) else value_sent) == value, name
    assert list(request.params.stop) == ["END"]
    assert request.params.logit_bias == {4: 1.5}
    assert (request.priority, request.cache_salt) == (-1, "me")


async def test_defaults() -> None:
    engine = ScriptedEngine()
    await chat(engine, temperature=None, stop=None, max_tokens=None)
    await chat(engine, max_completion_tokens=2)
    assert engine.submitted[0].params.temperature == 1.0
    assert engine.submitted[0].params.max_tokens is None
    assert engine.submitted[1].params.max_tokens == 2


async def test_an_aborted_answer_is_none() -> None:
    """``abort`` is no finish_reason of OpenAI's: half an answer with a 200 would look whole."""
    engine = ScriptedEngine(Script(finish_reason=FinishReason.ABORT))
    assert (await post(engine, "chat/completions", {"messages": USER})).status_code == 500


@pytest.mark.parametrize("slow", [True, False])
async def test_slow_templates_are_rendered_on_a_thread(
    slow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each short chat stalled the event loop for seconds; ordinary templates need no thread."""
    pieces, threads = ChatEncoder.pieces, list[threading.Thread]()

    def noted(self: ChatEncoder, *args: Any, **options: Any) -> list[str]:
        threads.append(threading.current_thread())
        return pieces(self, *args, **options)

    monkeypatch.setattr(ChatEncoder, "pieces", noted)
    loop = "{% for i in range(1000000) %}{% endfor %}" if slow else ""
    engine = ScriptedEngine(template=loop + "{{ messages[0].content }}")
    chat = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
    assert (await post(engine, "chat/completions", chat)).status_code == 200
    assert [thread is threading.main_thread() for thread in threads] == [not slow]
