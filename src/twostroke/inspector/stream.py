"""The feed: frames of new steps as server-sent events, at a limited rate.

A frame is made when the one before it has been taken. A page that takes none gets the steps that
it missed merged into the next one; the engine waits for nobody.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import msgspec

from twostroke.inspector.source import FrameLimits, StepSource
from twostroke.observability.frames.visibility import Visibility

FRAME_SECONDS = 1 / 15
IDLE_SECONDS = 1.0
MAX_STEPS, MAX_SHARES = 256, 4096
_NO_END = 2**62


class Idle(msgspec.Struct):
    """Nothing has run; the time on the engine's clock."""

    now: float


async def stream_frames(
    source: StepSource, since: int, visible: Visibility | None
) -> AsyncIterator[bytes]:
    """Events ``hello``, then ``frame`` with the last step's number as its id, or ``idle``.

    Steps in which nothing visible took part are no frame: when others run is not told.

    Args:
        since: The last step that the page knows.
    """
    description = source.describe()
    description.all_tenants = visible is None
    yield _event("hello", description)
    quiet_since, missed = time.monotonic(), 0
    while not source.is_ending():
        frame = await source.frame(since + 1, _NO_END, visible, FrameLimits(MAX_STEPS, MAX_SHARES))
        now = time.monotonic()
        if frame.last >= 0:
            missed += max(0, frame.first - since - 1)
            since = frame.last
        if frame.last >= 0 and (visible is None or frame.steps.step):
            frame.missed, missed, quiet_since = missed, 0, now
            yield _event("frame", frame, since)
        elif now - quiet_since >= IDLE_SECONDS:
            quiet_since = now
            yield _event("idle", Idle(source.describe().now))
        await asyncio.sleep(FRAME_SECONDS)


def _event(kind: str, value: object, number: int | None = None) -> bytes:
    head = f"event: {kind}\n" + ("" if number is None else f"id: {number}\n")
    return head.encode() + b"data: " + msgspec.json.encode(value) + b"\n\n"
