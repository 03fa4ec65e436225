"""What large bodies took goes back to the system."""

from __future__ import annotations

import asyncio

import pytest

from twostroke.http import body_size
from twostroke.http.body_size import TRIM_BYTES, BodyMemory, HeldBody
from twostroke.server.http.body_json import parse_large


async def test_freed_bodies_are_returned_once_for_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Holes in the heaps after a flood of bodies looked like a leak of 10 %."""
    returned: list[int] = []
    monkeypatch.setattr(body_size, "return_freed_memory", lambda: returned.append(1))
    monkeypatch.setattr(body_size, "TRIM_SECONDS", 0.01)
    memory = BodyMemory(2**40, lambda: 0)
    for num_bodies, expected in ((7, 0), (1, 1), (100, 2)):
        for _ in range(num_bodies):
            body = HeldBody(memory, "")
            body.add(TRIM_BYTES // 8)
            body.release()
            body.release()
        for _ in range(200 if expected > len(returned) else 5):
            await asyncio.sleep(0.01)
            if len(returned) == expected:
                break
        assert len(returned) == expected
    refused = HeldBody(memory, "", announced=TRIM_BYTES)  # at its first piece
    refused.release()
    refused.release()
    for _ in range(200):
        await asyncio.sleep(0.01)
        if len(returned) == 3:
            break
    assert len(returned) == 3 and not memory.num_bytes


async def test_parsing_rests_as_long_as_it_worked() -> None:
    """A flood of large bodies took the interpreter from the model all the time."""
    memory = BodyMemory(2**40, lambda: 2**18)
    loop, body = asyncio.get_running_loop(), b"[" + b"1," * 50_000 + b"1]"
    began = loop.time()
    await parse_large(body, 2**18, memory, None)
    first_end, rested_at = loop.time(), memory.rested_at
    assert began < first_end < rested_at <= first_end + (first_end - began)
    await parse_large(body, 2**18, memory, None)
    assert loop.time() >= rested_at
