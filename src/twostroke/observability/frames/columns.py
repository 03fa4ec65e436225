"""Step events as columns of numbers: what the page's ring buffers hold.

A step is a row of ``StepColumns``; each request that it ran is a row of ``ShareColumns``. Where
there are more than a screen can show, neighbouring steps are merged into one row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from twostroke.observability.events import (
    FinishedRequest,
    PreemptedRequest,
    ScheduledTokens,
    StartedRequest,
    StepEvent,
)
from twostroke.observability.frames.visibility import Visibility

SCHEMA = 1
MAX_STEPS, MAX_SHARES = 4096, 32768


class StepColumns(msgspec.Struct):
    """One entry a row. Times are seconds on the engine's clock.

    Attributes:
        span: Steps merged into the row; their numbers begin at ``step``.
        duration: From the start of the first to the end of the last.
        longest: The longest of the steps.
        tokens: Tokens that went through the model, of which ``prompt`` are prompt tokens.
        new: Tokens that requests got.
        running: After the last step of the row, as are the counts up to ``cached``.
        free: Blocks that no request holds.
        queries: Tokens looked up in the prefix cache, of which ``hits`` were found.
    """

    step: list[int] = []
    span: list[int] = []
    time: list[float] = []
    duration: list[float] = []
    longest: list[float] = []
    tokens: list[int] = []
    prompt: list[int] = []
    new: list[int] = []
    budget: list[int] = []
    running: list[int] = []
    waiting: list[int] = []
    free: list[int] = []
    cached: list[int] = []
    used: list[int] = []
    allocated: list[int] = []
    queries: list[int] = []
    hits: list[int] = []


class ShareColumns(msgspec.Struct):
    """What a request got in a row's steps.

    Attributes:
        row: Index into ``StepColumns``.
        request: Index into ``StepFrame.ids``.
        start: First position that was computed.
        tokens: Positions that were computed, of which ``prompt`` are the prompt's.
        new: Tokens that the request got.
        blocks: Length of its block table.
        drafts: Drafts that were verified, of which ``accepted`` were accepted.
    """

    row: list[int] = []
    request: list[int] = []
    start: list[int] = []
    tokens: list[int] = []
    prompt: list[int] = []
    new: list[int] = []
    blocks: list[int] = []
    drafts: list[int] = []
    accepted: list[int] = []


class HeldBack(msgspec.Struct, array_like=True):
    """Why a request got less than it lacks; ``request`` is an index into the ids, or -1."""

    request: int
    reason: str
    by: int
    behind: int


class Depth(msgspec.Struct, array_like=True):
    """A ``DepthChange``, of merged steps the last; ``request`` is an index into the ids."""

    request: int
    step: int
    depth: int
    reason: str
    gain: float
    pause: int


class RowNote(msgspec.Struct):
    """What happened in a row beside tokens. ``held_back`` is given where it changes.

    ``refused``: calls that were refused early, to those who see all requests.
    """

    row: int
    preempted: list[tuple[int, int]] = []
    finished: list[tuple[int, str]] = []
    started: list[StartedRequest] = []
    labels: dict[str, dict[str, str]] = {}
    held_back: list[HeldBack] | None = None
    error: str | None = None
    depths: list[Depth] = []
    refused: int = 0


class StepFrame(msgspec.Struct, omit_defaults=True):
    """Consecutive steps.

    Attributes:
        ids: Request ids that the columns index.
        timings: Seconds by component, a column each.
        merged: Most steps in one row.
        first: Number of the first step that was looked at, shown or not; -1 if there was none.
        last: Number of the last one.
        missed: Steps before it that are no longer known.
    """

    steps: StepColumns
    shares: ShareColumns
    ids: list[str]
    notes: list[RowNote]
    timings: dict[str, list[float]]
    merged: int = 1
    first: int = -1
    last: int = -1
    missed: int = 0


@dataclass(slots=True)
class _Merged:
    """Shares of one request in a row."""

    start: int
    blocks: int = 0
    tokens: int = 0
    prompt: int = 0
    new: int = 0
    drafts: int = 0
    accepted: int = 0

    def add(self, share: ScheduledTokens) -> None:
        self.tokens += share.num_tokens
        self.prompt += share.num_prompt_tokens
        self.new += share.num_new_tokens
        self.drafts += share.num_drafts
        self.accepted += share.num_accepted_drafts
        self.blocks = share.num_blocks


@dataclass
class _Builder:
    """Fills a frame row by row.

    Attributes:
        visible: Which requests may be named; ``None``: all, and the counts of the whole engine.
    """

    visible: Visibility | None
    frame: StepFrame = field(
        default_factory=lambda: StepFrame(StepColumns(), ShareColumns(), [], [], {}),
    )
    indices: dict[str, int] = field(default_factory=dict)
    held_back: list[HeldBack] | None = None

    def __post_init__(self) -> None:
        if self.visible is not None:
            self.held_back = []  # nothing held back is no note: it would tell of a step of others

    def index(self, request_id: str | None) -> int:
        if not request_id or (self.visible is not None and not self.visible(request_id)):
            return -1
        number = self.indices.get(request_id)
        if number is None:
            number = self.indices[request_id] = len(self.frame.ids)
            self.frame.ids.append(request_id)
        return number

    def add(self, events: Sequence[StepEvent]) -> None:
        """One row of consecutive steps."""
        row = len(self.frame.steps.step)
        merged: dict[str, _Merged] = {}
        for event in events:
            if self.visible is not None:
                self.visible.learn(event)
            for share in event.scheduled:
                if self.visible is None or self.visible(share.request_id):
                    whole = merged.get(share.request_id)
                    if whole is None:
                        whole = merged[share.request_id] = _Merged(share.start)
                    whole.add(share)
        notes = self._notes(row, events)
        if self.visible is not None and not (merged or notes):
            return  # nothing of this caller's took part in it
        self._add_step(events, merged)
        self._add_timings(events)
        columns = self.frame.shares
        for request_id, kept in merged.items():
            columns.row.append(row)
            columns.request.append(self.index(request_id))
            columns.start.append(kept.start)
            columns.tokens.append(kept.tokens)
            columns.prompt.append(kept.prompt)
            columns.new.append(kept.new)
            columns.blocks.append(kept.blocks)
            columns.drafts.append(kept.drafts)
            columns.accepted.append(kept.accepted)
        if notes is not None:
            self.frame.notes.append(notes)

    def _add_step(self, events: Sequence[StepEvent], shares: dict[str, _Merged]) -> None:
        columns, first, last = self.frame.steps, events[0], events[-1]
        whole = self.visible is None
        columns.step.append(first.step)
        columns.span.append(last.step - first.step + 1)
        columns.time.append(round(first.time, 6))
        columns.duration.append(round(last.time + last.duration - first.time, 6))
        columns.longest.append(round(max(event.duration for event in events), 6))
        columns.tokens.append(sum(share.tokens for share in shares.values()))
        columns.prompt.append(sum(share.prompt for share in shares.values()))
        columns.new.append(sum(share.new for share in shares.values()))
        columns.budget.append(sum(event.token_budget for event in events) if whole else 0)
        columns.running.append(last.num_running if whole else len(shares))
        columns.waiting.append(last.num_waiting if whole else 0)
        columns.free.append(last.free_blocks if whole else 0)
        columns.cached.append(last.cached_blocks if whole else 0)
        columns.used.append(last.used_slots if whole else 0)
        columns.allocated.append(last.allocated_slots if whole else 0)
        columns.queries.append(sum(event.prefix_queries for event in events) if whole else 0)
        columns.hits.append(sum(event.prefix_hits for event in events) if whole else 0)

    def _add_timings(self, events: Sequence[StepEvent]) -> None:
        timings, row = self.frame.timings, len(self.frame.steps.step) - 1
        for event in events:
            for component, seconds in event.timings.items():
                column = timings.setdefault(component, [])
                column += [0.0] * (row + 1 - len(column))
                column[row] = round(column[row] + seconds, 6)

    def _notes(self, row: int, events: Sequence[StepEvent]) -> RowNote | None:
        note, depths = RowNote(row), dict[int, Depth]()
        for event in events:
            for new in event.depths:
                if (index := self.index(new.request_id)) >= 0:
                    reason = new.reason.value
                    depths[index] = Depth(index, event.step, new.depth, reason, new.gain, new.pause)
            note.preempted += self._preempted(event.preempted)
            note.finished += self._finished(event.finished)
            note.started += [s for s in event.started if self.index(s.request_id) >= 0]
            for labelled in event.labelled:
                if self.index(labelled.request_id) >= 0:
                    note.labels[labelled.request_id] = labelled.labels
            if self.visible is None:
                note.error = event.error or note.error
                note.refused += len(event.refused)
        held_back = [
            HeldBack(
                number,
                held.reason.value,
                self.index(held.by),
                held.behind if self.visible is None else 0,  # they may be others' requests
            )
            for held in events[-1].held_back
            if (number := self.index(held.request_id)) >= 0 or self.visible is None
        ]
        if held_back != self.held_back:
            note.held_back = self.held_back = held_back
        note.depths = list(depths.values())
        return note if note != RowNote(row) else None

    def _preempted(self, preempted: Iterable[PreemptedRequest]) -> list[tuple[int, int]]:
        pairs = ((self.index(item.request_id), self.index(item.by)) for item in preempted)
        return [pair for pair in pairs if pair[0] >= 0]

    def _finished(self, finished: Iterable[FinishedRequest]) -> list[tuple[int, str]]:
        pairs = ((self.index(item.request_id), item.reason.value) for item in finished)
        return [pair for pair in pairs if pair[0] >= 0]


def encode_steps(
    events: Sequence[StepEvent],
    visible: Visibility | None = None,
    *,
    max_steps: int = MAX_STEPS,
    max_shares: int = MAX_SHARES,
) -> StepFrame:
    """The steps as columns, merged so far that both limits hold.

    Args:
        visible: Which requests may be shown, where not all: then steps without any of them are left
            out, and the counts of the whole engine are zero.
    """
    num_shares = sum(len(event.scheduled) for event in events)
    size = max(1, -(-len(events) // max_steps))
    # A merged row holds each request once, so merging need not shrink shares as much as steps.
    size = max(size, -(-num_shares // max_shares))
    builder = _Builder(visible)
    for begin in range(0, len(events), size):
        group = events[begin : begin + size]
        builder.add(group)
        if visible is not None:
            for event in group:
                visible.forget(event)
    frame = builder.frame
    frame.merged = size
    if events:
        frame.first, frame.last = events[0].step, events[-1].step
    for column in frame.timings.values():
        column += [0.0] * (len(frame.steps.step) - len(column))
    return frame


def those_that_fit(events: Iterable[StepEvent], max_steps: int, max_shares: int) -> list[StepEvent]:
    """The first of the steps, at least one, that need not be merged."""
    fitting: list[StepEvent] = []
    num_shares = 0
    for event in events:
        num_shares += len(event.scheduled)
        if fitting and (len(fitting) >= max_steps or num_shares > max_shares):
            break
        fitting.append(event)
    return fitting


def join_frames(frames: Sequence[StepFrame], merged: int) -> StepFrame:
    """One frame with the rows of several, which follow each other."""
    whole = StepFrame(StepColumns(), ShareColumns(), [], [], {}, merged)
    filled = [frame for frame in frames if frame.last >= 0]
    if filled:
        whole.first, whole.last = filled[0].first, filled[-1].last
    indices: dict[str, int] = {}
    for frame in frames:
        row = len(whole.steps.step)
        for request_id in frame.ids:
            if request_id not in indices:
                indices[request_id] = len(whole.ids)
                whole.ids.append(request_id)
        numbers = [indices[request_id] for request_id in frame.ids]
        for name in StepColumns.__struct_fields__:
            getattr(whole.steps, name).extend(getattr(frame.steps, name))
        whole.shares.row += [row + index for index in frame.shares.row]
        whole.shares.request += [numbers[index] for index in frame.shares.request]
        for name in ShareColumns.__struct_fields__[2:]:
            getattr(whole.shares, name).extend(getattr(frame.shares, name))
        for component, column in frame.timings.items():
            joined = whole.timings.setdefault(component, [])
            joined += [0.0] * (row - len(joined)) + column
        whole.notes += [_renumbered(note, row, numbers) for note in frame.notes]
    for column in whole.timings.values():
        column += [0.0] * (len(whole.steps.step) - len(column))
    return whole


def _renumbered(note: RowNote, row: int, numbers: Sequence[int]) -> RowNote:
    def number(index: int) -> int:
        return index if index < 0 else numbers[index]

    held_back = note.held_back
    if held_back is not None:
        held_back = [
            HeldBack(number(held.request), held.reason, number(held.by), held.behind)
            for held in held_back
        ]
    return RowNote(
        note.row + row,
        [(number(request), number(by)) for request, by in note.preempted],
        [(number(request), why) for request, why in note.finished],
        note.started,
        note.labels,
        held_back,
        note.error,
        [msgspec.structs.replace(new, request=numbers[new.request]) for new in note.depths],
        note.refused,
    )
