"""Protects: what can be sent and what cannot, and that equal requests are recognized."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from twostroke.batch.lines import (
    BadLine,
    BatchError,
    BatchOutput,
    BatchResponse,
    GoodLine,
    index_lines,
    parse_line,
)
from twostroke.core.errors import ConfigError

GOOD: dict[str, Any] = {
    "custom_id": "a",
    "method": "POST",
    "url": "/v1/chat/completions",
    "body": {"messages": [], "temperature": 0.1},
}


def call(**changes: Any) -> GoodLine:
    line = parse_line(json.dumps({**GOOD, **changes}).encode(), 1)
    assert isinstance(line, GoodLine)
    return line


def test_the_body_goes_out_as_it_was_written() -> None:
    line = parse_line(
        b'{"custom_id":"a","method":"POST","url":"/v1/completions","body":{ "seed":'
        b' 1e0,"prompt":"x"}}',
        3,
    )
    assert isinstance(line, GoodLine)
    assert (line.number, line.custom_id, line.url) == (3, "a", "/v1/completions")
    assert line.body.strip() == b'{ "seed": 1e0,"prompt":"x"}'


def test_equal_requests_have_equal_ids() -> None:
    reordered = {"temperature": 0.1, "messages": []}
    assert call().id == call(custom_id="b").id == call(body=reordered).id
    assert len({call().id, call(url="/v1/completions").id, call(body={"messages": []}).id}) == 3
    assert call().id.startswith("batch_req_")


@pytest.mark.parametrize(
    ("raw", "custom_id", "message"),
    [
        ("{", None, "line 7 is no JSON object"),
        ("[1]", None, "line 7 is no JSON object"),
        ('{"custom_id": "\ud800"}', None, "line 7 is no JSON object"),
        ("[" * 100_000, None, "line 7 is no JSON object"),
        ({**GOOD, "custom_id": 3}, None, "line 7: custom_id must be a string"),
        ({**GOOD, "custom_id": ""}, None, "line 7: custom_id must be a string"),
        (
            {"custom_id": "a", "method": "POST", "url": "/v1/completions"},
            "a",
            "line 7: body is missing",
        ),
        ({**GOOD, "priority": 1}, "a", "line 7: unknown field 'priority'"),
        ({**GOOD, "method": "GET"}, "a", "line 7: method must be POST, got 'GET'"),
        (
            {**GOOD, "url": "/v1/models"},
            "a",
            "line 7: url must be one of /v1/chat/completions, /v1/completions, ",
        ),
        ({**GOOD, "body": []}, "a", "line 7: body must be an object"),
        ({**GOOD, "body": {"stream": True}}, "a", "line 7: body.stream must be left out"),
    ],
)
def test_what_cannot_be_sent(
    raw: str | dict[str, Any], custom_id: str | None, message: str
) -> None:
    text = raw if isinstance(raw, str) else json.dumps(raw)
    line = parse_line(text.encode("utf-8", "surrogatepass"), 7)
    assert isinstance(line, BadLine)
    assert line.custom_id == custom_id
    assert line.message.startswith(message)


def test_index(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    good, other = json.dumps(GOOD), json.dumps({**GOOD, "custom_id": "b"})
    path.write_bytes(b"\xef\xbb\xbf" + f"{good}\n\n  \nbad\n{other}".encode())
    assert list(index_lines(path)) == ["a", 4, "b"]
    path.write_text(f"{good}\nbad\n{good}\n")
    with pytest.raises(ConfigError, match="lines 1 and 3 have the same custom_id, 'a'"):
        index_lines(path)
    path.write_text("\n\n")
    with pytest.raises(ConfigError, match="holds no requests"):
        index_lines(path)
    with pytest.raises(ConfigError, match="cannot read"):
        index_lines(tmp_path)


def test_output_is_openais() -> None:
    answered = BatchOutput(
        "batch_req_1", "a", BatchResponse(200, "r", msgspec.Raw(b'{"x": 1}')), None
    )
    assert json.loads(msgspec.json.encode(answered)) == {
        "id": "batch_req_1",
        "custom_id": "a",
        "response": {"status_code": 200, "request_id": "r", "body": {"x": 1}},
        "error": None,
    }
    assert answered.succeeded
    refused = BatchOutput("batch_req_1", "a", BatchResponse(400, "r", msgspec.Raw(b"{}")), None)
    bad = BatchOutput("batch_req_1", None, None, BatchError("invalid_line", "line 3 ...", 3))
    assert not refused.succeeded and not bad.succeeded
    assert (refused.key, bad.key) == ("a", 3)
    for output in (answered, refused, bad):
        again = msgspec.json.decode(msgspec.json.encode(output), type=BatchOutput)
        assert (again.key, again.succeeded) == (output.key, output.succeeded)
