"""Protects: a slow page gets fewer, larger frames; it holds up nobody and loses no token."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

from tests.inspector.recorded import events
from twostroke.inspector.source import Description, FoundRequests, FrameLimits, Overview, State
from twostroke.inspector.stream import stream_frames
from twostroke.observability.events import StepEvent
from twostroke.observability.frames.columns import StepColumns, StepFrame, encode_steps
from twostroke.observability.frames.visibility import Visibility


class Growing:
    """A source whose steps the test adds."""

    def __init__(self) -> None:
        self.events: list[StepEvent] = []
        self.first = 0  # older ones have left the ring
        self.ending = False

    def describe(self) -> Description:
        return Description("live", "id", "name")

    async def frame(
        self, begin: int, end: int, visible: Visibility | None, limits: FrameLimits
    ) -> StepFrame:
        kept = self.events[max(begin, self.first) : end]
        return encode_steps(kept, visible, max_steps=limits.max_steps, max_shares=limits.max_shares)

    def step_at(self, time: float) -> int:
        return 0

    async def state(self, step: int | None, *, with_blocks: bool = False) -> State:
        return State(0.0, [], [], [])

    async def overview(self, begin: float, end: float, max_steps: int) -> Overview:
        return Overview(StepColumns(), [])

    async def find(self, text: str, tenant: str | None, count: int) -> FoundRequests:
        return FoundRequests([])

    async def requests_of(self, tenant: str) -> set[str]:
        return set()

    def is_ending(self) -> bool:
        return self.ending


async def read(source: Growing, pauses: list[int]) -> list[dict[str, Any]]:
    """The frames that a page gets which takes one after so many more steps each time."""
    frames = []
    stream = stream_frames(source, -1, None)
    await anext(stream)  # hello
    for number in pauses:
        source.events = events()[: len(source.events) + number]
        text = (await anext(stream)).decode()
        assert text.startswith("event: frame\nid: ")
        frames.append(json.loads(text.split("data: ", 1)[1]))
    source.ending = True
    assert [event async for event in stream] == []  # so a server that ends does not wait for it
    return frames


def test_a_slow_page_gets_the_missed_steps_merged() -> None:
    source = Growing()
    frames = asyncio.run(read(source, [3, 300, 5]))
    assert [frame.get("merged", 1) for frame in frames] == [1, 2, 1]
    shown = sum(sum(frame["steps"]["tokens"]) for frame in frames)
    assert shown == sum(event.num_tokens for event in events()[:308])


def test_steps_that_are_gone_are_counted() -> None:
    source = Growing()
    source.first, source.events = 40, events()[:50]
    (frame,) = asyncio.run(read(source, [1]))
    assert frame["missed"] == 40
    assert frame["steps"]["step"][0] == 40


def test_frames_come_fifteen_times_a_second_at_most() -> None:
    began = time.perf_counter()
    asyncio.run(read(Growing(), [1] * 7))
    assert time.perf_counter() - began > 6 * 0.9 / 15


def test_steps_of_others_alone_are_no_frame() -> None:
    """A tenant would see by them when others run."""
    source = Growing()
    source.events = events()[:50]

    async def second() -> bytes:
        stream = stream_frames(source, -1, Visibility("nobody"))
        await anext(stream)  # hello
        return await asyncio.wait_for(anext(stream), 5)

    assert asyncio.run(second()).startswith(b"event: idle")
