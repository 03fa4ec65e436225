"""``docs/reference/openai-api.md`` says of each field what the code does with it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from twostroke.server.foreign_fields import ADVISORY
from twostroke.server.http.body_fields import StrictModel
from twostroke.server.openai.chat_request import ChatCompletionRequest
from twostroke.server.openai.text_completions.request import CompletionRequest

DOCUMENT = Path(__file__).parents[3] / "docs" / "reference" / "openai-api.md"
REQUESTS: tuple[type[StrictModel], ...] = (ChatCompletionRequest, CompletionRequest)


def works() -> Iterator[str]:
    """Fields of chats, of completions, or of both."""
    chat, text = (request.model_fields.keys() for request in REQUESTS)
    for where, names in (
        ("both", chat & text),
        ("chats", chat - text),
        ("completions", text - chat),
    ):
        yield f"| {where} | {_wrapped(sorted(names))} |"


def ignored() -> Iterator[str]:
    for name, reason in sorted(ADVISORY.items()):
        yield f"| `{name}` | {reason} |"


def refused() -> Iterator[str]:
    """With the values that ask for nothing."""
    for name in sorted({*REQUESTS[0].refused, *REQUESTS[1].refused}):
        places = [
            place
            for place, request in zip(("chats", "completions"), REQUESTS, strict=True)
            if name in request.refused
        ]
        neutral = next(request.refused[name] for request in REQUESTS if name in request.refused)
        values = ", ".join(f"`{json.dumps(value)}`" for value in (None, *neutral))
        yield f"| `{name}` | {', '.join(places)} | {values} |"


def _wrapped(names: list[str]) -> str:
    return " ".join(f"`{name}`" for name in names)


def test_every_field_stands_in_its_table() -> None:
    """The rows of ``works`` are long, so the document breaks them; all others are verbatim."""
    text = DOCUMENT.read_text(encoding="utf-8")
    missing = [row for row in (*ignored(), *refused()) if row not in text.splitlines()]
    assert not missing, "these rows are missing:\n" + "\n".join(missing)
    fields = {row.split(" | ")[0].strip("| "): row.split("`")[1::2] for row in works()}
    for where, names in fields.items():
        section = text.partition(f"\n### Of {where}\n")[2].partition("\n#")[0]
        assert section.split("`")[1::2] == names, f"{where}: " + ", ".join(
            f"`{name}`" for name in names
        )


def test_no_row_is_of_a_field_that_is_gone() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    rows = {line for line in text.splitlines() if line.startswith("| `")}
    assert rows == {*ignored(), *refused()}
