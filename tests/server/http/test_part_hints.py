"""Hints tell the truth: a part of text that is wrong is not an image, in no dialect."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.http_calls import any_engine, post

FIELDS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat/completions": ("messages", {}),
    "messages": ("messages", {"max_tokens": 4}),
    "responses": ("input", {}),
}
# Kinds of text parts that are misspelt or of another dialect, and what is meant.
TEXTS = [
    ("chat/completions", "txt", "text"),
    ("chat/completions", "input_text", "text"),
    ("messages", "input_text", "text"),
    ("messages", "tool_results", "tool_result"),
    ("responses", "input_txt", "input_text"),
]
OTHERS = [
    ("chat/completions", "image_url"),
    ("chat/completions", "input_audio"),
    ("chat/completions", "file"),
    ("messages", "image"),
    ("responses", "input_image"),
    ("responses", "input_file"),
]


async def message_of(route: str, part: Any, role: str = "user") -> str:
    field, fields = FIELDS[route]
    body = {field: [{"role": role, "content": [part]}], **fields}
    response = await post(any_engine(), route, body)
    assert response.status_code == 400, response.text
    message: str = response.json()["error"]["message"]
    return message


@pytest.mark.parametrize(("route", "kind", "meant"), TEXTS)
async def test_a_misspelt_kind_of_text_is_named_right(route: str, kind: str, meant: str) -> None:
    message = await message_of(route, {"type": kind, "text": "a"})
    assert f"send '{meant}'" in message and "image" not in message.partition("Hint")[2]


@pytest.mark.parametrize("route", FIELDS)
@pytest.mark.parametrize("part", [{"type": "text"}, {"type": "text", "text": 5}, {"text": "a"}])
async def test_a_text_part_without_its_text_says_nothing_of_images(route: str, part: Any) -> None:
    message = await message_of(route, part)
    assert "content[0].t" in message and "image" not in message


@pytest.mark.parametrize(("route", "kind"), OTHERS)
async def test_what_is_no_text_is_told_so(route: str, kind: str) -> None:
    assert "takes text only" in await message_of(route, {"type": kind})


@pytest.mark.parametrize("route", ["messages", "responses"])
@pytest.mark.parametrize("role", ["tool", "function"])
async def test_a_role_of_another_dialect_is_no_image(route: str, role: str) -> None:
    message = await message_of(route, {"type": "text", "text": "a"}, role)
    assert "role" in message and "image" not in message
