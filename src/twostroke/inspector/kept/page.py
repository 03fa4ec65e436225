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
from twostroke.inspector.why.shown import Asked, ShownBound, shown_bound
from twostroke.observability.frames.columns import MAX_SHARES, MAX_STEPS
from twostroke.questions.model_facts import ModelFacts

ENTRY = "app.js"
READ_SECONDS = 600.0
MOMENTS = 48  # at which it is kept what bounded the steps; each takes up to some 0.1 s
_SHEET = '<link rel="stylesheet" href="'


def kept_page(recording: Recording, facts: ModelFacts | None = None) -> tuple[str, int]:
    """The file's text, and how many steps it holds: the last ones, where there are many.

    It shows overview, timeline and requests; what a server would compute (blocks, the roofline,
    comparisons) it cannot.

    Args:
        facts: The model whose steps these are, for what bounded them, where it is known.

    Raises:
        ConfigError: The recording was not read in time.
    """
    if not recording.wait_until_read(READ_SECONDS):
        raise ConfigError(
            f"the recording was not read in {READ_SECONDS:.0f} s", hint="try a shorter one"
        )
    answers, steps = asyncio.run(_answers(recording, facts))
    return one_file(ENTRY, _sheets(), ("recording", answers)), steps


async def _answers(recording: Recording, facts: ModelFacts | None) -> tuple[dict[str, Any], int]:
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
    answers = {
        "describe": described,
        "frame": frame,
        "requests": requests,
        "waits": waits,
        "minutes": book.minutes(described.first_time, described.last_time),
        "bounds": await _bounds(recording, frame.steps.step, facts),
    }
    return msgspec.to_builtins(answers), len(frame.steps.step)


async def _bounds(
    recording: Recording, steps: list[int], facts: ModelFacts | None
) -> list[tuple[int, ShownBound]]:
    """What bounded the server at moments spread evenly over the steps, the last included."""
    many = min(MOMENTS, len(steps))
    chosen = [steps[(place + 1) * len(steps) // many - 1] for place in range(many)]
    return [(step, await shown_bound(recording, Asked(to=step), facts)) for step in chosen]


def _sheets() -> tuple[str, ...]:
    """The style sheets of the served page, in their order."""
    text = known_files()[INDEX].content.decode()
    return tuple(part.split('"', 1)[0] for part in text.split(_SHEET)[1:])
