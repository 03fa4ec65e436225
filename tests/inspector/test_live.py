"""Protects: pages that ask for the state at once cost the engine one copy, and block nobody."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, cast

import pytest

from twostroke.engine.clients.base import EngineClient
from twostroke.inspector.live import FEW_STEPS, LiveSource
from twostroke.inspector.source import FrameLimits
from twostroke.observability.events import StepEvent
from twostroke.observability.snapshot import EngineSnapshot


class Copying:
    """The part of a client that a source reads; a copy takes a moment."""

    def __init__(self) -> None:
        self.num_copies = 0
        self.fails = False

    async def snapshot(self, *, with_blocks: bool = False) -> EngineSnapshot:
        self.num_copies += 1
        number = self.num_copies
        await asyncio.sleep(0.01)
        if self.fails:
            raise KeyError("a bug")
        return EngineSnapshot(time=float(number), unix_time=0.0, running=[], waiting=[], ended=[])

    def events(self, since: int = -1) -> list[StepEvent]:
        return [StepEvent(step=n, time=float(n), duration=1.0) for n in range(since + 1, 400)]


def source_of(client: Copying) -> LiveSource:
    return LiveSource(lambda: cast(EngineClient, client), lambda: "name", lambda: False)


async def test_who_asks_at_once_shares_an_answer() -> None:
    client = Copying()
    source = source_of(client)
    states = await asyncio.gather(*(source.state(None) for _ in range(5)))
    assert client.num_copies == 1
    assert {state.time for state in states} == {1.0}
    assert (await source.state(None)).time == 2.0  # later, another
    client.fails = True
    with pytest.raises(KeyError):
        await source.state(None)


async def test_one_that_leaves_takes_no_answer_from_others() -> None:
    source = source_of(Copying())
    leaves, stays = (asyncio.ensure_future(source.state(None)) for _ in range(2))
    await asyncio.sleep(0)
    leaves.cancel()
    assert (await stays).time == 1.0


async def test_many_steps_are_encoded_beside_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from twostroke.inspector import live

    went_on = threading.Event()

    def slow(events: list[StepEvent], *_: Any, **__: Any) -> int:
        assert went_on.wait(30), "the event loop waits for it"
        return len(events)

    monkeypatch.setattr(live, "encode_steps", slow)
    source = source_of(Copying())
    frame = asyncio.ensure_future(source.frame(0, 300, None, FrameLimits(4096, 4096)))
    await asyncio.sleep(0.01)
    went_on.set()
    assert cast(int, await frame) == 300 > FEW_STEPS
