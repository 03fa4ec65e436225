"""However an answer arrives, its pieces add up to the same, and calls come whole."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.server.dialogues import CALLS, THINKING
from tests.server.ollama.ollama_calls import (
    TEXT,
    USER,
    WEATHER,
    chat,
    engine_that_says,
    lines_of,
    post,
)
from twostroke.core.errors import RequestFailedError
from twostroke.core.request import FinishReason
from twostroke.server.generation.answer_reading import AnswerReading
from twostroke.server.ollama.pieces import PieceReader
from twostroke.server.state.served_model import ServedModel

MODEL = ServedModel(engine_that_says().loaded_model(), ("scripted",))
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Zürich"}}\n</tool_call>'
OTHER = '<tool_call>{"name": "get_weather", "arguments": {}}</tool_call>'
PARTS = st.sampled_from(["I look. ", " \n", "x", CALL, OTHER, "<tool", "é"])


def read(pieces: list[str]) -> tuple[str, list[dict[str, Any]]]:
    reading = AnswerReading(MODEL, {"get_weather": {}}, [])
    reader = PieceReader(reading.make_parts(), show_thoughts=True)
    read = [reader.read(piece, ended=False) for piece in pieces]
    read.append(reader.read("", ended=True))
    calls = [json.loads(bytes(call.function.arguments)) for piece in read for call in piece.calls]
    indices = [call.function.index for piece in read for call in piece.calls]
    assert indices == list(range(len(calls)))
    return "".join(piece.content for piece in read), calls


@given(parts=st.lists(PARTS, max_size=6), data=st.data())
def test_pieces_add_up_however_they_are_cut(parts: list[str], data: st.DataObject) -> None:
    text = "".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[i:j] for i, j in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert read(pieces) == read([text])


def test_white_space_between_calls_is_no_content() -> None:
    content, calls = read([f"\n{CALL}", "\n", f"{OTHER}\n"])
    assert content == "" and calls == [{"city": "Zürich"}, {}]
    assert read(["\n "]) == ("\n ", [])


async def test_calls_come_whole_in_a_stream() -> None:
    lines = lines_of(await chat(engine_that_says(*CALLS), tools=[WEATHER], stream=True))
    calls = [call for line in lines for call in line["message"].get("tool_calls", ())]
    assert [call["function"]["arguments"] for call in calls] == [
        {"city": "Zürich"},
        {"city": "Bern"},
    ]
    assert [call["function"]["index"] for call in calls] == [0, 1]
    assert "".join(line["message"]["content"] for line in lines) == "I look. "
    assert all(any(line["message"].values()) for line in lines[:-1])
    assert not any("tool_calls" in line["message"] for line in lines[-1:])
    whole = (await chat(engine_that_says(*CALLS), tools=[WEATHER])).json()["message"]
    assert whole["content"] == "I look. "
    assert [call["function"] for call in whole["tool_calls"]] == [c["function"] for c in calls]


async def test_a_call_that_was_cut_off_is_left_out() -> None:
    """Half of its arguments would be a call that the model did not make."""
    engine = engine_that_says(*CALLS[:3], finish_reason=FinishReason.LENGTH)
    message = (await chat(engine, tools=[WEATHER])).json()
    assert message["done_reason"] == "length"
    assert message["message"] == {"role": "assistant", "content": "I look. "}


@pytest.mark.parametrize("path", ["chat", "generate"])
async def test_the_last_line_has_the_figures(path: str) -> None:
    engine = engine_that_says(seconds_per_step=0.01)
    asks: dict[str, dict[str, Any]] = {"chat": {"messages": USER}, "generate": {"prompt": "hi"}}
    body = asks[path]
    *lines, last = lines_of(await post(engine, path, {"model": "scripted:latest", **body}))
    assert not any(line["done"] for line in lines) and last["done"]
    assert all(line["model"] == "scripted:latest" for line in [*lines, last])
    assert len({line["created_at"] for line in lines}) == len(lines) == 4
    assert last["done_reason"] == "stop"
    assert last["prompt_eval_count"] == len(engine.submitted[0].prompt_token_ids)
    assert last["eval_count"] == 4
    # Four steps of 10 ms: the first answers for the prompt, the others for the rest.
    assert last["prompt_eval_duration"] >= 9e6 and last["eval_duration"] >= 27e6
    parts = last["prompt_eval_duration"] + last["eval_duration"]
    assert parts <= last["total_duration"] < 10e9 and last["load_duration"] == 0
    whole = (await post(engine, path, {**body, "stream": False})).json()
    assert whole["prompt_eval_duration"] >= 9e6 and whole["eval_duration"] >= 27e6
    assert "".join(map(text_of, lines)) == text_of(whole) == TEXT


def text_of(line: dict[str, Any]) -> str:
    text: str = line["message"]["content"] if "message" in line else line["response"]
    return text


async def test_log_probabilities_are_those_of_the_tokens() -> None:
    engine = engine_that_says()
    fields: dict[str, Any] = {"logprobs": True, "top_logprobs": 2}
    whole = (await chat(engine, **fields)).json()["logprobs"]
    assert len(whole) == 4 and all(len(entry["top_logprobs"]) == 2 for entry in whole)
    lines = lines_of(await chat(engine, stream=True, **fields))
    assert [entry for line in lines for entry in line.get("logprobs", ())] == whole
    assert "logprobs" not in (await chat(engine)).json()
    named = await chat(engine, top_logprobs=2)
    assert named.headers["x-ignored-fields"] == "top_logprobs"


async def test_a_failure_in_mid_stream_is_the_last_line() -> None:
    engine = engine_that_says(error=RequestFailedError("it broke"), error_at=2)
    *lines, last = lines_of(await chat(engine, stream=True))
    assert len(lines) == 2 and last == {"error": "it broke"}
    early = engine_that_says(error=RequestFailedError("it broke"))
    response = await chat(early, stream=True)
    assert response.status_code == 500 and response.json() == {"error": "it broke"}


async def test_nothing_to_say_means_that_the_model_is_there() -> None:
    engine = engine_that_says(template=THINKING)
    asks: list[tuple[str, dict[str, Any]]] = [
        ("chat", {"messages": []}),
        ("chat", {}),
        ("generate", {}),
    ]
    for path, body in asks:
        answer = (await post(engine, path, {**body, "keep_alive": 0})).json()
        assert answer["done"] and answer["done_reason"] == "load"
    assert not engine.submitted
    refused = await post(engine, "chat", {"options": {"temperature": -1}})
    assert refused.status_code == 400
