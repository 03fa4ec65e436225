"""What bounded a source's steps at a moment, and how many more users had fit, for the page."""

from __future__ import annotations

import asyncio
from functools import partial
from math import inf
from typing import NamedTuple

import msgspec

from twostroke.core.step import Reason
from twostroke.inspector.source import FrameLimits, RequestSource
from twostroke.inspector.why.bound import Bound, bound_of
from twostroke.inspector.why.drafts import DraftsPay, drafts_pay
from twostroke.inspector.why.room import RoomForMore, room_of
from twostroke.observability.frames.columns import MAX_SHARES, StepFrame
from twostroke.questions.model_facts import Ceilings, ModelFacts

MAX_LOOKED_AT = 512  # steps; each costs some 50 microseconds where a model is known


class ShownBound(msgspec.Struct):
    """The answer of ``/v1/inspect/bound``.

    Attributes:
        room: ``None`` where no step only decoded.
        drafts: About the latest steps, however long ago, if these verified guesses or none decoded
            alone; else ``None``.
        device: Whose ceilings these are; empty where there are none.
        earlier: Whether ``room`` is of steps before these, none of which decoded alone.
    """

    bound: Bound
    room: RoomForMore | None = None
    drafts: DraftsPay | None = None
    device: str = ""
    earlier: bool = False


class Asked(NamedTuple):
    """A moment, and the time before it that is judged.

    Attributes:
        to: The step at whose end it is; ``None``: now.
        tpot: The limit for how many more users fit; ``None``: a tenth more than now.
    """

    to: int | None = None
    seconds: float = 5.0
    tpot: float | None = None


async def shown_bound(
    source: RequestSource,
    asked: Asked,
    facts: ModelFacts | None = None,
    measured: Ceilings | None = None,
    running_since: float | None = None,
) -> ShownBound:
    """The answer of ``/v1/inspect/bound``.

    Args:
        measured: The ceilings that a measurement found, before those of a calibration or a sheet.
        running_since: When the step began that runs now.
    """
    described, (to, seconds, tpot) = source.describe(), asked
    last = described.last_step if to is None else to
    frame = await _frame(source, last, seconds)
    end = described.now if to is None else _end_of(frame, described.now)
    begin = max(end - seconds, frame.steps.time[0] if frame.steps.time else end - seconds)
    costs = None if facts is None else facts.costs
    ceilings = measured or (None if facts is None else facts.calibrated)
    ceilings = ceilings or (None if costs is None else costs.ceilings)
    bound = await asyncio.to_thread(
        partial(bound_of, running_since=running_since), frame, begin, end, costs, ceilings
    )
    if to is not None and not frame.steps.step:
        bound.kind, bound.within, bound.why = "unknown", "unknown", "gone"
    shown = ShownBound(bound, device="" if ceilings is None else ceilings.device)
    configured = described.configuration.get("max_num_seqs")

    def rooms(frame: StepFrame) -> RoomForMore | None:
        places = configured if isinstance(configured, int) else _places_in(frame)
        return room_of(frame, costs, ceilings, max_num_seqs=places, tpot=tpot)

    shown.room = await asyncio.to_thread(rooms, frame)
    has_drafts = any(frame.shares.drafts)
    if frame.steps.step and (shown.room is None or has_drafts):
        # Such as a single prompt after a long rest: what decoded before it tells more. And few
        # guesses say little.
        longer = await _frame(source, last, inf)
        shown.drafts = await asyncio.to_thread(drafts_pay, longer, costs)
        if shown.room is None:
            shown.earlier = True
            shown.room = await asyncio.to_thread(rooms, longer)
    return shown


async def _frame(source: RequestSource, last: int, seconds: float) -> StepFrame:
    """The steps before the end of one, unmerged; the last ones where there are many."""
    limits = FrameLimits(MAX_LOOKED_AT, MAX_SHARES, "last")
    one = await source.frame(last, last + 1, None, limits)
    if not one.steps.step:
        return one
    first = source.step_at(_end_of(one, 0.0) - seconds)
    return await source.frame(max(first, last + 1 - MAX_LOOKED_AT), last + 1, None, limits)


def _places_in(frame: StepFrame) -> int | None:
    """How many ran when all places were taken, where the steps of a recording tell it."""
    full = [
        frame.steps.running[note.row]
        for note in frame.notes
        if any(held.reason == Reason.MAX_NUM_SEQS.value for held in note.held_back or ())
    ]
    return max(full, default=None)


def _end_of(frame: StepFrame, otherwise: float) -> float:
    steps = frame.steps
    return steps.time[-1] + steps.duration[-1] if steps.time else otherwise
