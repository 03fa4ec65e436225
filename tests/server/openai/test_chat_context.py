"""Chats with documents and a budget: prompts, usage, and the fields that are refused."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.http_calls import USER, chat, post, stream
from tests.server.scripted import ScriptedEngine
from twostroke.server.generation.encoding import MAX_CONTEXT_CHARS
from twostroke.server.openai.field_limits import MAX_DOCUMENTS

SYSTEM = {"role": "system", "content": "be brief"}


def history(turns: int) -> list[Any]:
    messages: list[Any] = [SYSTEM]
    for i in range(turns):
        messages += [
            {"role": "user", "content": f"the fox {i}"},
            {"role": "assistant", "content": f"the dog {i}"},
        ]
    return [*messages, *USER]


def prompt_of(engine: ScriptedEngine) -> str:
    return engine.tokenizer.decode(engine.submitted[-1].prompt_token_ids, skip_special_tokens=False)


async def test_documents_are_written_behind_the_system_prompt() -> None:
    engine = ScriptedEngine()
    documents = ["a fox", {"text": "a dog", "id": 7, "title": "Dogs"}]
    answer = await chat(engine, messages=[SYSTEM, *USER], documents=documents, max_tokens=4)
    assert (
        prompt_of(engine)
        == "system: be brief\n\nDocuments:\n\n[1]\na fox\n\n[7] Dogs\na dog\nuser: the"
        " dog\nassistant: "
    )
    context = answer["usage"]["context"]
    assert [document["id"] for document in context["documents"]] == ["1", "7"]
    assert all(
        document["kept_tokens"] == document["tokens"] > 0 for document in context["documents"]
    )


async def test_what_does_not_fit_goes_and_usage_says_so() -> None:
    """The model's 100 tokens, less 20 for the answer."""
    engine = ScriptedEngine()
    answer = await chat(engine, messages=history(9), context={}, max_tokens=20)
    usage, context = answer["usage"], answer["usage"]["context"]
    assert (
        usage["prompt_tokens"]
        == len(engine.submitted[0].prompt_token_ids)
        <= 80
        == context["max_tokens"]
    )
    assert sum(context["kept"].values()) == usage["prompt_tokens"]
    assert context["strategy"] == "drop_oldest"
    dropped = context["turns"]["dropped"]
    assert 0 < dropped < 9 == dropped + context["turns"]["kept"]
    assert context["dropped"]["history"] > 0 == context["dropped"]["documents"]
    assert f"fox {dropped - 1}\n" not in prompt_of(engine) and f"fox {dropped}\n" in prompt_of(
        engine
    )
    assert "be brief" in prompt_of(engine) and prompt_of(engine).endswith(
        "user: the dog\nassistant: "
    )


async def test_a_stream_says_the_same() -> None:
    body = {
        "messages": history(9),
        "documents": ["a fox " * 9],
        "context": {"strategy": "truncate_documents"},
    }
    whole = await chat(ScriptedEngine(), **body, max_tokens=40)
    options = {"stream_options": {"include_usage": True}, "max_tokens": 40}
    *events, last = await stream(ScriptedEngine(), "chat/completions", {**body, **options})
    assert last["usage"]["context"] == whole["usage"]["context"]
    assert all(event["usage"] is None for event in events)


async def test_a_stream_without_usage_reports_on_its_last_chunk() -> None:
    """What was left out is always reported; the events before are as without documents."""
    body = {
        "messages": history(9),
        "documents": ["a fox " * 9],
        "context": {},
        "max_tokens": 40,
        "n": 2,
    }
    whole = await chat(ScriptedEngine(), **body)
    *events, last = await stream(ScriptedEngine(), "chat/completions", body)
    assert last["usage"] == whole["usage"] and last["choices"][0]["finish_reason"]
    assert not any("usage" in event for event in events)


async def test_no_two_documents_have_one_id() -> None:
    """Who gave none is called by its place, unless another is called that."""
    engine = ScriptedEngine()
    documents = ["a", {"text": "b", "id": 1}, {"text": "c", "id": "3"}, "d", "e"]
    answer = await chat(engine, documents=documents, max_tokens=4)
    ids = [document["id"] for document in answer["usage"]["context"]["documents"]]
    assert ids == ["2", "1", "3", "4", "5"]


async def test_an_answer_too_long_is_named_and_not_the_messages() -> None:
    response = await post(
        ScriptedEngine(),
        "chat/completions",
        {"messages": USER, "documents": ["x"], "max_tokens": 200},
    )
    error = response.json()["error"]
    assert (error["param"], error["code"]) == ("max_tokens", "context_length_exceeded")
    assert "200" in error["message"] and "100 tokens" in error["message"]


async def test_a_cut_document() -> None:
    engine = ScriptedEngine()
    long = " ".join(f"{i:02}" for i in range(40))
    fields = {
        "documents": [long],
        "context": {"strategy": "truncate_documents", "max_tokens": 70},
        "max_tokens": 9,
    }
    context = (await chat(engine, messages=[SYSTEM, *USER], **fields))["usage"]["context"]
    document = context["documents"][0]
    assert 0 < document["kept_tokens"] < document["tokens"]
    assert context["cut"]["documents"] == document["tokens"] - document["kept_tokens"]
    assert "[1]\n00 01 02" in prompt_of(engine) and " 39" not in prompt_of(engine)


async def test_over_retrieval_is_ranked() -> None:
    """By the scores given; else by BM25 with the last user message, which asks for the dog."""
    texts = ["a fox jumps over", "the dog", "a lazy cat sleeps", "no more of them"]
    for documents in (texts, [{"text": text, "score": float(text == "the dog")} for text in texts]):
        engine = ScriptedEngine()
        answer = await chat(engine, documents=documents, context={"max_tokens": 55}, max_tokens=4)
        uses = answer["usage"]["context"]["documents"]
        assert uses[1]["kept_tokens"] > 0 and uses[1]["score"] == max(use["score"] for use in uses)
        assert not all(use["kept_tokens"] for use in uses)
        assert answer["usage"]["prompt_tokens"] <= 55
    engine = ScriptedEngine()
    await chat(engine, documents=texts, context={"document_order": "score"}, max_tokens=4)
    assert prompt_of(engine).index("the dog") < prompt_of(engine).index("a fox")


async def test_room_for_an_answer_without_max_tokens() -> None:
    """A quarter of the context, unless what must stay needs it."""
    engine = ScriptedEngine()
    answer = await chat(engine, messages=history(9), context={})
    assert answer["usage"]["prompt_tokens"] <= 75 == answer["usage"]["context"]["max_tokens"]
    long = await chat(engine, messages=[{"role": "user", "content": "x " * 36}], context={})
    assert 75 < long["usage"]["prompt_tokens"] == long["usage"]["context"]["max_tokens"]


async def test_continuing_the_last_message() -> None:
    engine = ScriptedEngine()
    messages = [*history(9), {"role": "assistant", "content": "The do"}]
    await chat(engine, messages=messages, context={}, max_tokens=20, continue_final_message=True)
    assert prompt_of(engine).endswith("user: the dog\nassistant: The do")


async def test_without_documents_and_context_nothing_changes() -> None:
    """vLLM's clients may send them empty; what is too long is refused, and usage has no new key."""
    empty: list[dict[str, Any]] = [{}, {"documents": []}, {"documents": None, "context": None}]
    for fields in empty:
        engine = ScriptedEngine()
        answer = await chat(engine, messages=[SYSTEM, *USER], **fields)
        assert prompt_of(engine) == "system: be brief\nuser: the dog\nassistant: "
        assert "context" not in answer["usage"]
        response = await post(engine, "chat/completions", {"messages": history(9), **fields})
        assert response.json()["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize(
    ("fields", "numbers"),
    [
        (
            {"messages": [SYSTEM, {"role": "user", "content": "x " * 60}], "context": {}},
            "but 99 are available",
        ),
        ({"context": {"max_tokens": 5}}, "but 5 are available"),
        ({"documents": ["x"], "max_tokens": 95}, "but 5 are available"),
        (
            {"messages": history(9), "context": {"strategy": "error"}, "max_tokens": 9},
            "but 91 are available",
        ),
        (
            {"documents": ["x " * 999], "context": {"strategy": "error"}},
            "with all turns and documents, but 99",
        ),
    ],
)
async def test_what_cannot_fit_is_refused_with_the_numbers(
    fields: dict[str, Any], numbers: str
) -> None:
    engine = ScriptedEngine()
    response = await post(engine, "chat/completions", {"messages": USER, **fields})
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (
        400,
        "context_length_exceeded",
        "messages",
    )
    assert numbers in error["message"]
    assert not engine.submitted


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"documents": "x"}, "documents"),
        ({"documents": [3]}, "documents[0]"),
        ({"documents": [{}]}, "documents[0].text"),
        ({"documents": [""]}, "documents[0].text"),
        ({"documents": [{"text": 3}]}, "documents[0].text"),
        ({"documents": [{"text": "x", "url": "y"}]}, "documents[0].url"),
        ({"documents": [{"text": "x", "score": "high"}]}, "documents[0].score"),
        ({"documents": [{"text": "x", "score": float("inf")}]}, "documents[0].score"),
        ({"documents": ["x", {"text": "x", "score": 1}]}, "documents[0].score"),
        ({"documents": [{"text": "x", "score": 1}, "x"]}, "documents[1].score"),
        ({"documents": [{"text": "x", "id": 1.5}]}, "documents[0].id"),
        ({"documents": [{"text": "x", "id": 7}, "y", {"text": "z", "id": "7"}]}, "documents[2].id"),
        ({"documents": ["x"], "max_tokens": 200}, "max_tokens"),
        ({"documents": ["x"], "max_completion_tokens": 100}, "max_completion_tokens"),
        ({"documents": ["x", "\ud800"]}, "documents[1].text"),
        ({"documents": [{"text": "x", "title": "\ud800"}]}, "documents[0].title"),
        ({"documents": [{"text": "x", "id": "\ud800"}]}, "documents[0].id"),
        ({"documents": ["x"] * (MAX_DOCUMENTS + 1)}, "documents"),
        ({"documents": ["x" * MAX_CONTEXT_CHARS]}, "documents"),
        ({"messages": [{"role": "user", "content": "x" * 4_000_001}], "context": {}}, "messages"),
        ({"context": 3}, "context"),
        ({"context": {"budget": 3}}, "context.budget"),
        ({"context": {"max_tokens": 0}}, "context.max_tokens"),
        ({"context": {"max_tokens": True}}, "context.max_tokens"),
        ({"context": {"strategy": "drop"}}, "context.strategy"),
        ({"context": {"document_order": "worst"}}, "context.document_order"),
        ({"context": {}, "truncate_prompt_tokens": 5}, "truncate_prompt_tokens"),
        (
            {"messages": [{"role": "user", "content": "\ud800"}], "context": {}},
            "messages[0].content",
        ),
    ],
)
async def test_bad_fields_are_named(fields: dict[str, Any], param: str) -> None:
    engine = ScriptedEngine()
    response = await post(engine, "chat/completions", {"messages": USER, **fields})
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param
    assert "text only" not in response.json()["error"]["message"]
    assert not engine.submitted
