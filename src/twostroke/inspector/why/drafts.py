"""Whether guesses paid, from recorded steps: seconds a token with them and without."""

from __future__ import annotations

from statistics import linear_regression, median
from typing import NamedTuple

import msgspec

from twostroke.inspector.model.points import points_of
from twostroke.observability.frames.columns import StepFrame
from twostroke.questions.model_facts import StepCosts, StepWork

# Numbers of tokens with so many steps each, so many of them, the most so many times the least: then
# a line through their times says what fewer tokens take.
LEAST_STEPS, LEAST_NUMBERS, LEAST_SPREAD = 3, 3, 2


class DraftsPay(msgspec.Struct):
    """Whether guesses paid: seconds a token of one request, with and without them.

    Attributes:
        steps: Steps with guesses that are compared.
        with_drafts: Seconds a token in these.
        without: In steps of as many requests without guesses, in the same part of time.
        measured: Share of ``steps`` for which such steps ran.
        fitted: Share for which a line through the times of all decode steps, by their tokens, says
            how much shorter they would have been; for the others the cost model does.
        accepted: Share of the guesses that were right.
    """

    steps: int
    with_drafts: float
    without: float
    measured: float
    fitted: float
    accepted: float


class _Decode(NamedTuple):
    """A step that only decoded; ``pass_seconds`` without the time of making its guesses."""

    row: int
    seconds: float
    pass_seconds: float
    requests: int
    new: int
    drafts: int
    accepted: int


def drafts_pay(frame: StepFrame, costs: StepCosts | None = None) -> DraftsPay | None:
    """Compare the decode steps of an unmerged frame; ``None`` where there is nothing to compare."""
    steps = _decodes(frame)
    plain: dict[int, list[float]] = {}
    for step in steps:
        if not step.drafts:
            plain.setdefault(step.requests, []).append(step.seconds)
    usual = {requests: median(times) for requests, times in plain.items()}
    line = _line(steps)
    ratios = _ratios(frame, costs) if line is None else {}
    compared: list[_Decode] = []
    unguessed, measured, fitted = 0.0, 0, 0
    for step in steps:
        if not step.drafts or not step.new:
            continue
        base = usual.get(step.requests)
        if base is not None:
            measured += 1
        elif line is not None:
            start, each = line
            tokens = step.requests + step.drafts
            base = step.pass_seconds * (start + each * step.requests) / (start + each * tokens)
            fitted += 1
        elif (ratio := ratios.get(frame.steps.step[step.row])) is not None:
            base = step.pass_seconds * ratio
        else:
            continue
        compared.append(step)
        unguessed += step.requests * base
    if not compared:
        return None
    number = len(compared)
    return DraftsPay(
        number,
        sum(step.requests * step.seconds for step in compared) / sum(step.new for step in compared),
        unguessed / sum(step.requests for step in compared),
        measured / number,
        fitted / number,
        sum(step.accepted for step in compared) / sum(step.drafts for step in compared),
    )


def _decodes(frame: StepFrame) -> list[_Decode]:
    shares, steps = frame.shares, frame.steps
    guessing = frame.timings.get("draft")  # seconds that making the guesses took, by row
    prompts = {row for row, prompt in zip(shares.row, shares.prompt, strict=True) if prompt}
    sums: dict[int, tuple[int, int, int, int]] = {}
    for index, row in enumerate(shares.row):
        if row in prompts or steps.span[row] != 1:
            continue
        requests, new, drafts, accepted = sums.get(row, (0, 0, 0, 0))
        sums[row] = (
            requests + 1,
            new + shares.new[index],
            drafts + shares.drafts[index],
            accepted + shares.accepted[index],
        )
    decodes = []
    for row, counts in sums.items():
        made = guessing[row] if guessing else 0.0
        took = steps.duration[row]
        decodes.append(_Decode(row, took, max(0.0, took - made), *counts))
    return decodes


def _line(steps: list[_Decode]) -> tuple[float, float] | None:
    """Seconds of a pass of no token, and of each in it; ``None`` where too few numbers ran."""
    times: dict[int, list[float]] = {}
    for step in steps:
        times.setdefault(step.requests + step.drafts, []).append(step.pass_seconds)
    usual = {tokens: median(each) for tokens, each in times.items() if len(each) >= LEAST_STEPS}
    if len(usual) < LEAST_NUMBERS or max(usual) < LEAST_SPREAD * min(usual):
        return None
    slope, start = linear_regression(list(usual), list(usual.values()))
    if slope < 0:  # no token costs anything, as far as can be seen
        slope, start = 0.0, median(usual.values())
    if start < 0:
        slope, start = linear_regression(list(usual), list(usual.values()), proportional=True)
    return (start, slope) if start + slope > 0 else None


def _ratios(frame: StepFrame, costs: StepCosts | None) -> dict[int, float]:
    """Estimate a step's time without its drafts over its time with them, by number."""
    if costs is None or not any(frame.shares.drafts):
        return {}
    points = points_of(frame, costs)
    ratios = {}
    for index, step in enumerate(points.step):
        estimate, requests = points.estimate[index], points.requests[index]
        if estimate and not points.prompt[index]:
            plain = costs.cost(StepWork(requests, points.context[index], (), requests)).seconds
            if plain is not None:
                ratios[step] = plain / estimate
    return ratios
