"""What bounds a server in a part of time: arithmetic, memory, the host, or its queue."""

from __future__ import annotations

from collections import Counter

import msgspec

from twostroke.core.step import Reason
from twostroke.inspector.model.points import Points, points_of
from twostroke.observability.frames.columns import StepFrame
from twostroke.questions.model_facts import Ceilings, StepCosts

IDLE = 0.05  # share of the time; a server that is busy for less waits for requests
HALF = 0.5
LEAST = 0.25  # of a ceiling: steps that stay below both are bound by neither
# What keeps a request out although the processor could take it.
ROOM = (Reason.MAX_NUM_SEQS.value, Reason.NO_FREE_BLOCK.value, Reason.BATCH_RUNNING.value)
ON_DEVICE = ("forward", "sample")


class Bound(msgspec.Struct):
    """The answer; shares are in [0, 1], and ``None`` where nothing tells them.

    Attributes:
        kind: ``idle``, ``queue``, ``host``, ``compute``, ``memory``, ``overhead`` (the steps come
            near neither ceiling), or ``unknown`` (see ``why``).
        within: What bounds the steps themselves, where ``kind`` is ``queue`` or ``idle``; else the
            same. ``idle`` where no step ran.
        why: Where ``within`` is ``unknown``: ``model`` (nothing tells what its steps cost),
            ``device`` (nothing tells its ceilings), ``tokens`` (its steps computed none),
            ``unended`` (its only step has not ended) or ``gone`` (its steps are not kept).
        seconds: The part of time.
        busy: Share of it in which steps ran, the one that runs included.
        unended: Seconds that the step has taken which runs at the end; 0: none does.
        host: Share of the steps' time outside the forward pass and the drawing of tokens.
        compute: FLOP/s of the steps over the ceiling.
        memory: Bytes/s of them over the ceiling.
        waiting: Requests that waited at the end.
        reason: What most of the steps that left requests out gave as the reason.
        left_out: Share of the steps that left a request out for lack of room.
        running: Requests in the last step.
    """

    kind: str
    within: str
    seconds: float
    busy: float
    why: str = ""
    unended: float = 0.0
    host: float | None = None
    compute: float | None = None
    memory: float | None = None
    waiting: int = 0
    reason: str = ""
    left_out: float = 0.0
    running: int = 0


def bound_of(
    frame: StepFrame,
    begin: float,
    end: float,
    costs: StepCosts | None = None,
    ceilings: Ceilings | None = None,
    *,
    running_since: float | None = None,
) -> Bound:
    """What bounded the steps of an unmerged frame between two times.

    Args:
        costs: FLOPs and bytes of steps; without them only host and queue are told.
        ceilings: What the device can do, best as measured.
        running_since: When the step began that runs at ``end`` and is in no frame yet.
    """
    steps = frame.steps
    rows = [row for row in range(len(steps.time)) if _overlaps(frame, row, begin, end)]
    seconds = max(end - begin, 1e-9)
    # A step may begin before this part of time, and reach beyond it.
    spent = sum(
        min(steps.time[row] + steps.duration[row], end) - max(steps.time[row], begin)
        for row in rows
    )
    bound = Bound("idle", "idle", seconds, 0.0)
    if running_since is not None:
        bound.unended = max(0.0, end - running_since)
        spent += min(bound.unended, seconds)
    bound.busy = min(1.0, spent / seconds)
    if not rows:
        if bound.busy >= IDLE:
            bound.kind, bound.within, bound.why = "unknown", "unknown", "unended"
        return bound
    bound.waiting, bound.running = steps.waiting[rows[-1]], steps.running[rows[-1]]
    bound.reason, bound.left_out = _left_out(frame, rows)
    bound.host = _host_share(frame, rows)
    bound.within = _within(frame, rows, bound, costs, ceilings)
    if bound.busy < IDLE and not bound.waiting:
        return bound
    queues = bound.left_out > HALF and bound.waiting > 0
    bound.kind = "queue" if queues else bound.within
    return bound


def _overlaps(frame: StepFrame, row: int, begin: float, end: float) -> bool:
    time, duration = frame.steps.time[row], frame.steps.duration[row]
    return time < end and (time >= begin or time + duration > begin)


def _left_out(frame: StepFrame, rows: list[int]) -> tuple[str, float]:
    """The reason that most steps gave for lack of room, and the share of steps that gave one."""
    notes = {note.row: note.held_back for note in frame.notes if note.held_back is not None}
    reasons: Counter[str] = Counter()
    held: list[str] = []
    inside = set(rows)
    for row in range(len(frame.steps.step)):
        if row in notes:  # what is held back is noted where it changes
            held = [item.reason for item in notes[row] or [] if item.reason in ROOM]
        if row in inside and held:
            reasons[held[0]] += 1
    if not reasons:
        return "", 0.0
    return reasons.most_common(1)[0][0], sum(reasons.values()) / len(rows)


def _host_share(frame: StepFrame, rows: list[int]) -> float | None:
    spent = sum(frame.steps.duration[row] for row in rows)
    columns = [frame.timings[name] for name in ON_DEVICE if name in frame.timings]
    if not columns or spent <= 0:
        return None
    on_device = sum(column[row] for column in columns for row in rows)
    return min(1.0, max(0.0, 1.0 - on_device / spent))


def _within(
    frame: StepFrame,
    rows: list[int],
    bound: Bound,
    costs: StepCosts | None,
    ceilings: Ceilings | None,
) -> str:
    if bound.host is not None and bound.host > HALF:
        return "host"
    if costs is None:
        bound.why = "model"
        return "unknown"
    numbers = {frame.steps.step[row] for row in rows}
    points = points_of(frame, costs)
    chosen = [index for index, step in enumerate(points.step) if step in numbers]
    if not chosen or ceilings is None:
        bound.why = "device" if chosen else "tokens"
        return "unknown"
    return _of_ceilings(points, chosen, bound, ceilings)


def _of_ceilings(points: Points, chosen: list[int], bound: Bound, ceilings: Ceilings) -> str:
    """Which ceiling the steps come nearer to, if they come near one."""
    spent = sum(points.seconds[index] for index in chosen)
    bound.compute = sum(points.flops[index] for index in chosen) / ceilings.flops / spent
    bound.memory = sum(points.bytes[index] for index in chosen) / ceilings.bandwidth / spent
    if max(bound.compute, bound.memory) < LEAST:
        return "overhead"
    return "compute" if bound.compute > bound.memory else "memory"
