"""Protects: a conversation of thousands of items is put together in time linear in its length."""

from __future__ import annotations

import time
from typing import Any

from twostroke.server.responses.conversation import conversation_of
from twostroke.server.responses.items import read_items

THOUGHT: dict[str, Any] = {
    "type": "reasoning",
    "content": [{"type": "reasoning_text", "text": "x" * 400}],
}


def test_thoughts_in_a_row_are_lines_of_one_message() -> None:
    say = {"type": "message", "role": "assistant", "content": "done"}
    (first, second) = conversation_of(None, read_items([THOUGHT, THOUGHT, say, THOUGHT])).messages
    assert first["reasoning_content"] == "\n".join(["x" * 400] * 2)
    assert (first["content"], second["reasoning_content"]) == ("done", "x" * 400)


def test_eight_thousand_thoughts_take_eight_times_a_thousand() -> None:
    """Each joined to all before it, they took 0.5 s, 64 times as long."""

    def seconds(count: int) -> float:
        items, best = read_items([THOUGHT] * count), float("inf")
        for _ in range(5):
            began = time.thread_time()
            conversation_of(None, items)
            best = min(best, time.thread_time() - began)
        return best

    assert seconds(8000) < 24 * seconds(1000)
