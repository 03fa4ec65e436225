"""How many more users like those of now fit, at a TPOT: by places, by blocks, by step times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from statistics import mean, median

import msgspec

from twostroke.core.step import Reason
from twostroke.observability.frames.columns import StepFrame
from twostroke.observability.frames.own import own_requests
from twostroke.questions.model_facts import Ceilings, StepCosts, StepWork

MOST = 4096  # users that are looked for
SLACK = 1.1  # a TPOT that is 10 % more counts as this one


class RoomForMore(msgspec.Struct):
    """The answer; ``None`` where nothing tells it.

    Attributes:
        users: Requests that decode in a step of now, the median.
        context: Tokens that each attends to, the mean.
        tpot: Seconds of a decode step of now, the median.
        limit: TPOT that may not be passed.
        places: More that ``--max-num-seqs`` lets run.
        blocks: More for which KV blocks are free, each with as many as those of now.
        time: More until a decode step takes longer than ``limit``, by the cost model, scaled to
            what steps take. Their prompts come on top.
        more: The least of these.
        binding: Which one that is: ``places``, ``blocks`` or ``time``.
    """

    users: int
    context: int
    tpot: float
    limit: float
    places: int | None = None
    blocks: int | None = None
    time: int | None = None
    more: int | None = None
    binding: str = ""


def room_of(
    frame: StepFrame,
    costs: StepCosts | None = None,
    ceilings: Ceilings | None = None,
    *,
    max_num_seqs: int | None = None,
    tpot: float | None = None,
) -> RoomForMore | None:
    """Tell what still fits after the last step of a frame; ``None`` without a decode in it.

    Args:
        costs: What steps cost; without it ``time`` is not told.
        ceilings: Take the place of estimates where the cost model knows no such device.
        tpot: The limit; by default that of now and a tenth more.
    """
    decodes = _decodes(frame)
    if not decodes:
        return None
    users = round(median(len(contexts) for _, contexts in decodes))
    context = round(mean(mean(contexts) for _, contexts in decodes))
    took = median(seconds for seconds, _ in decodes)
    room = RoomForMore(users, context, took, SLACK * took if tpot is None else tpot)
    waiting = frame.steps.waiting[-1]  # these have what is free before any that comes
    if max_num_seqs is not None:
        room.places = max(0, max_num_seqs - frame.steps.running[-1] - waiting)
    held: dict[int, int] = {}
    for request, blocks in zip(frame.shares.request, frame.shares.blocks, strict=True):
        held[request] = blocks
    each = max(1.0, mean(held.values()))
    room.blocks = max(0, int(frame.steps.free[-1] / each) - waiting)
    reasons = _held_back_at_the_end(frame)
    if Reason.MAX_NUM_SEQS.value in reasons:
        room.places = 0
    if Reason.NO_FREE_BLOCK.value in reasons:
        room.blocks = 0
    if costs is not None:
        room.time = _by_time(room, _estimator(costs, ceilings))
    limits = {"places": room.places, "blocks": room.blocks, "time": room.time}
    told = {name: number for name, number in limits.items() if number is not None}
    room.binding = min(told, key=lambda name: told[name])
    room.more = told[room.binding]
    return room


def _held_back_at_the_end(frame: StepFrame) -> set[str]:
    notes = [note.held_back for note in frame.notes if note.held_back is not None]
    return {item.reason for item in notes[-1]} if notes else set()


def _decodes(frame: StepFrame) -> list[tuple[float, list[int]]]:
    """Seconds a token and contexts of the steps that only decoded.

    Without drafts, if there are such; of a server that always drafts, those with drafts. Steps of
    the inspector's own requests alone are left out.
    """
    steps, shares = frame.steps, frame.shares
    contexts: dict[int, list[int]] = {}
    tokens: Counter[int] = Counter()
    others: set[int] = set()
    drafting: set[int] = set()
    own, of_users = own_requests(frame), set[int]()
    for index, row in enumerate(shares.row):
        if shares.request[index] not in own:
            of_users.add(row)
        if shares.prompt[index] or shares.tokens[index] != 1 + shares.drafts[index]:
            others.add(row)
            continue
        contexts.setdefault(row, []).append(shares.start[index] + 1)
        tokens[row] += shares.new[index]
        if shares.drafts[index]:
            drafting.add(row)
    rows = [row for row in contexts if row in of_users - others and steps.span[row] == 1]
    plain = [row for row in rows if row not in drafting]
    if plain:
        return [(steps.duration[row], contexts[row]) for row in plain]
    return [
        (steps.duration[row] * len(contexts[row]) / tokens[row], contexts[row])
        for row in rows
        if tokens[row]
    ]


def _estimator(costs: StepCosts, ceilings: Ceilings | None) -> Callable[[int, int], float | None]:
    def seconds(users: int, context: int) -> float | None:
        cost = costs.cost(StepWork(users, users * context, (), users))
        if cost.seconds is not None:
            return cost.seconds
        if ceilings is None:
            return None
        return max(cost.flops / ceilings.flops, cost.bytes / ceilings.bandwidth)

    return seconds


def _by_time(room: RoomForMore, seconds: Callable[[int, int], float | None]) -> int | None:
    """The most that keep the limit; step times only grow with users."""
    now = seconds(room.users, room.context)
    if not now:
        return None

    def keeps(more: int) -> bool:
        then = seconds(room.users + more, room.context)
        return then is not None and room.tpot * then / now <= room.limit

    least, most = 0, MOST
    if not keeps(1):
        return 0
    while least < most:
        middle = (least + most + 1) // 2
        if keeps(middle):
            least = middle
        else:
            most = middle - 1
    return least
