"""Documents and search results: what the model reads of them, and what is refused, with a hint."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest

from tests.server.anthropic.messages_calls import BODY, USER, engine_that_says
from tests.server.dialogues import prompt_of
from tests.server.http_calls import post
from tests.server.running import running_server
from tests.server.scripted import Script, ScriptedEngine

PLAIN = {"type": "text", "media_type": "text/plain", "data": "Bern has bears."}
DOCUMENT: dict[str, Any] = {"type": "document", "source": PLAIN}
FOUND: dict[str, Any] = {
    "type": "search_result",
    "source": "https://example.org/a",
    "title": "Bears",
    "content": [{"type": "text", "text": "Two bears."}, {"type": "text", "text": "One cub."}],
}
FOUND_TEXT = (
    "<search_result>\n<source>https://example.org/a</source>\n<title>Bears</title>\n"
    "Two bears.\nOne cub.\n</search_result>"
)
QUESTION = {"type": "text", "text": "Which animals?"}


@pytest.fixture
def engine() -> ScriptedEngine:
    return engine_that_says("bears")


@pytest.fixture
def api(engine: ScriptedEngine) -> Iterator[anthropic.Anthropic]:
    with (
        running_server(engine) as url,
        anthropic.Anthropic(base_url=url, api_key="x", max_retries=0) as api,
    ):
        yield api


@pytest.mark.parametrize(
    ("block", "shown"),
    [
        (DOCUMENT, "<document>\nBern has bears.\n</document>"),
        (
            {**DOCUMENT, "title": "Bern", "context": "A guide."},
            "<document>\n<title>Bern</title>\n<context>A guide.</context>\nBern has bears.\n"
            "</document>",
        ),
        (
            {**DOCUMENT, "source": {"type": "content", "content": FOUND["content"]}},
            "<document>\nTwo bears.\nOne cub.\n</document>",
        ),
        (
            {**DOCUMENT, "source": {"type": "content", "content": "Two bears."}},
            "<document>\nTwo bears.\n</document>",
        ),
        (FOUND, FOUND_TEXT),
    ],
)
def test_the_model_reads_it_where_it_stands(
    api: anthropic.Anthropic, engine: ScriptedEngine, block: Any, shown: str
) -> None:
    """They were refused: the client's own request for a document got a 400."""
    turns: Any = [{"role": "user", "content": [block, QUESTION]}]
    answer = api.messages.create(model="scripted", max_tokens=50, messages=turns)
    assert answer.stop_reason == "end_turn"
    assert prompt_of(engine).startswith(f"user: {shown}\nWhich animals?|")
    counted = api.messages.count_tokens(model="scripted", messages=turns)
    assert counted.input_tokens == len(engine.submitted[0].prompt_token_ids)


def test_tools_answer_with_them(api: anthropic.Anthropic, engine: ScriptedEngine) -> None:
    call = {"type": "tool_use", "id": "t1", "name": "find", "input": {"city": "Bern"}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": [FOUND, QUESTION, DOCUMENT]}
    turns: Any = [
        *USER,
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result]},
    ]
    api.messages.create(model="scripted", max_tokens=50, messages=turns)
    document = "<document>\nBern has bears.\n</document>"
    assert f"tool: {FOUND_TEXT}\nWhich animals?\n{document}[t1 find]|" in prompt_of(engine)


async def test_citations_are_named_as_ignored(engine: ScriptedEngine) -> None:
    """The answer is what it would be without; that it cites nothing is said in the header."""
    block = {**DOCUMENT, "citations": {"enabled": True}, "cache_control": {"type": "ephemeral"}}
    turns = [{"role": "user", "content": [block, QUESTION]}]
    response = await post(engine, "messages", {**BODY, "messages": turns})
    assert response.status_code == 200, response.text
    path = "messages[].content[]."
    assert response.headers["x-ignored-fields"] == f"{path}citations, {path}cache_control"


PDF = {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="}
SEND_TEXT = "send its text"
REFUSED: list[tuple[Any, str, str]] = [
    ({**DOCUMENT, "source": PDF}, "source.type: this server reads no PDF files", SEND_TEXT),
    ({**DOCUMENT, "source": {"type": "url", "url": "http://a"}}, "fetches no addresses", SEND_TEXT),
    ({**DOCUMENT, "source": {"type": "file", "file_id": "a"}}, "source.type: ", SEND_TEXT),
    ({**DOCUMENT, "source": {**PLAIN, "media_type": "text/html"}}, "source.media_type", SEND_TEXT),
    ({**DOCUMENT, "source": {"type": "text"}}, "content[0].source.data is missing", ""),
    ({**DOCUMENT, "source": "http://a"}, "the source of a document must be an object", ""),
    ({"type": "document"}, "content[0].source is missing", ""),
    ({**DOCUMENT, "source": {**PLAIN, "data": "\ud800"}}, "holds a lone surrogate", ""),
    ({**DOCUMENT, "title": "\ud800"}, "holds a lone surrogate", ""),
    ({**FOUND, "source": PLAIN}, "the source of a search_result must be a text", ""),
    ({**FOUND, "title": None}, "content[0].title is null", ""),
    ({**FOUND, "content": [DOCUMENT]}, "a search result holds text blocks alone", ""),
    # Its type is the mistake, not its source.
    ({"type": "image", "source": PDF}, "content[0].type: ", "this server takes text only"),
    (
        {"type": "tool_result", "tool_use_id": "a", "content": [{**DOCUMENT, "source": PDF}]},
        "content[0].content[0].source.type: this server reads no PDF files",
        SEND_TEXT,
    ),
]


@pytest.mark.parametrize(("block", "message", "hint"), REFUSED)
async def test_what_is_no_text_is_refused(
    engine: ScriptedEngine, block: Any, message: str, hint: str
) -> None:
    body = {**BODY, "messages": [{"role": "user", "content": [block]}]}
    response = await post(engine, "messages", json.dumps(body))
    assert response.status_code == 400, response.text
    text = response.json()["error"]["message"]
    assert text.startswith("messages[0].content[0]") and message in text
    assert hint in text.partition("Hint: ")[2]


@pytest.mark.parametrize("nested", [False, True])
async def test_their_parts_count_as_blocks(nested: bool) -> None:
    """As blocks of tool results do: an empty text is 30 bytes, and microseconds to check."""
    source = {"type": "content", "content": [{"type": "text", "text": ""}] * 8190}
    block: Any = {**DOCUMENT, "source": source}
    if nested:
        block = {"type": "tool_result", "tool_use_id": "a", "content": [block]}
    engine = ScriptedEngine(Script(max_model_len=20_000), template="{{ messages | length }}")
    for extra, status in ((0, 200), (3, 400)):
        began = time.monotonic()
        content = [block, *[QUESTION] * extra]
        body = {**BODY, "messages": [{"role": "user", "content": content}]}
        response = await post(engine, "messages", body)
        assert response.status_code == status, response.text
        assert time.monotonic() - began < 15
