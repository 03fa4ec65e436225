"""A recording as one file: the page, its steps and its requests, for a browser without a server."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from twostroke.core.errors import ConfigError
from twostroke.inspector.one_file import one_file
from twostroke.inspector.recording import Recording
from twostroke.inspector.source import FrameLimits
from twostroke.inspector.static_files import INDEX, known_files
from twostroke.observability.frames.columns import MAX_SHARES, MAX_STEPS

ENTRY = "app.js"
READ_SECONDS = 600.0
_SHEET = '<link rel="stylesheet" href="'


def kept_page(recording: Recording) -> tuple[str, int]:
    """The file's text, and how many steps it holds: the last ones, where there are many.

    It shows overview, timeline and requests; what a server would compute (blocks, the roofline,
    comparisons) it cannot.

    Raises:
        ConfigError: The recording was not read in time.
    """
    if not recording.wait_until_read(READ_SECONDS):
        raise ConfigError(
            f"the recording was not read in {READ_SECONDS:.0f} s", hint="try a shorter one"
        )
    answers, steps = asyncio.run(_answers(recording))
    return one_file(ENTRY, _sheets(), ("recording", answers)), steps


async def _answers(recording: Recording) -> tuple[dict[str, Any], int]:
    """What the page's questions are answered from, in the form of the routes."""
    described = recording.describe()
    limits = FrameLimits(MAX_STEPS, MAX_SHARES, "last")
    frame = await recording.frame(0, described.last_step + 1, None, limits)
    state = await recording.state(None)
    described.first_step = frame.steps.step[0]
    described.first_time = frame.steps.time[0]
    book = await recording.waits()
    requests = [*state.ended, *state.running, *state.waiting]
    waits = {r.request_id: found for r in requests if (found := book.of(r.request_id)) is not None}
    answers = {"describe": described, "frame": frame, "requests": requests, "waits": waits}
    return msgspec.to_builtins(answers), len(frame.steps.step)


def _sheets() -> tuple[str, ...]:
    """The style sheets of the served page, in their order."""
    text = known_files()[INDEX].content.decode()
    return tuple(part.split('"', 1)[0] for part in text.split(_SHEET)[1:])
