"""A diagnosis as text: the cause first, what to do, and then the rest."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import wrap
from typing import TextIO

from twostroke.doctor.cause import Cause
from twostroke.doctor.diagnose import Diagnosis, TargetVerdict
from twostroke.doctor.figures import Change, duration
from twostroke.doctor.levers import NO_LEVER
from twostroke.doctor.proof import Tried, TriedLever

WIDTH = 96
MAX_ADVICE = 4
_TIMED = ("ttft", "tpot", "e2el")
# Where a live server has run nothing for so long, the report says so: it tells of the past.
STALE_SECONDS = 5.0


def print_diagnosis(diagnosis: Diagnosis, stream: TextIO) -> None:
    """Write the report for an operator."""
    lines = [*_head(diagnosis), "", *_causes(diagnosis), *_advice(diagnosis), *_spent(diagnosis)]
    lines += _sure(diagnosis.tried)
    print("\n".join(lines), file=stream)


def _head(diagnosis: Diagnosis) -> Iterator[str]:
    windows = diagnosis.windows
    requests = sum(len(window.requests) for window in windows)
    steps = sum(len(window.events) for window in windows)
    seconds = max(window.end for window in windows) - min(window.begin for window in windows)
    name = windows[0].name if len(windows) == 1 else f"{len(windows)} replicas"
    age = min(window.age for window in windows)
    past = f"; the last one ended {duration(age)} ago" if age >= STALE_SECONDS else ""
    yield f"{name}: {requests:,} requests, {steps:,} steps in {duration(seconds)}{past}"
    figures = (f"{figure.name} {duration(value)}" for figure, value in diagnosis.figures)
    yield from wrapped(", ".join(figures), 0)
    for verdict in diagnosis.verdicts:
        yield f"target {verdict.target.text}: {_judged(verdict)}"


def _judged(verdict: TargetVerdict) -> str:
    metric, value = verdict.target.metric, verdict.value
    shown = duration(value) if metric in _TIMED else f"{value:.3g}"
    if verdict.server_only:
        return f"MISSED by the server's own count; here it is {shown}"
    return f"{'MISSED' if verdict.missed else 'met'} ({shown})"


def _causes(diagnosis: Diagnosis) -> Iterator[str]:
    for place, cause in enumerate(diagnosis.causes[:4]):
        if cause.is_floor and place:
            yield from wrapped(f"otherwise it is bound by {cause.title}", 0)
            continue
        yield from wrapped(f"{'Cause' if not place else 'Also'}: {cause.title}", 0)
        yield from wrapped(_extent(cause), 2)
        for sentence in cause.evidence:
            yield from wrapped(sentence, 2)
    for number, sentence in enumerate(diagnosis.spike):
        yield from wrapped(sentence if number else f"TTFT spike: {sentence}", 2 if number else 0)


def _extent(cause: Cause) -> str:
    if not cause.seconds:
        return f"{cause.share:.0%} of the calls"
    what = "is the model's own work" if cause.is_floor else f"({cause.seconds:,.3g} s)"
    return f"{cause.share:.0%} of the requests' time {what}"


def _advice(diagnosis: Diagnosis) -> Iterator[str]:
    tried = diagnosis.tried
    yield ""
    for number, proof in enumerate(tried.advice[:MAX_ADVICE]):
        yield from wrapped(f"{'Do' if not number else 'Or'}: {proof.lever.command}", 0)
        yield from wrapped(effects(proof), 4)
        if proof.lever.note:
            yield from wrapped(proof.lever.note, 4)
    for cause in diagnosis.causes[:2]:
        if (where := NO_LEVER.get(cause.name)) is not None:
            yield from wrapped(f"{'Look' if not tried.advice else 'Or look'}: {where}", 0)
    if not tried.advice and not any(cause.name in NO_LEVER for cause in diagnosis.causes[:1]):
        yield "Do: nothing that was tried would help." if tried.refused else "Nothing was tried."
    if tried.refused:
        yield from wrapped(f"Tried, no advice: {refused_text(tried)}", 0)


def refused_text(tried: Tried) -> str:
    """What did not help, one entry for each flag and reason."""
    values: dict[tuple[str, str], list[str]] = {}
    for proof in tried.refused:
        words = proof.lever.command.split()
        is_flag = len(words) == 2 and words[0].startswith("--")
        flag = words[0] if is_flag else proof.lever.command
        values.setdefault((flag, proof.verdict), []).append(words[1] if is_flag else "")
    return "; ".join(
        f"{flag} {', '.join(filter(None, named))}".strip() + f" ({verdict})"
        for (flag, verdict), named in values.items()
    )


def effects(proof: TriedLever) -> str:
    """What a lever does, in one line: its own figure with the interval, then the others."""
    main = proof.main
    first = f"{change_text(main)} ({duration(main.low)} to {duration(main.high)})"
    return ", ".join([first, *map(change_text, proof.others)])


def change_text(change: Change) -> str:
    """A figure before and after."""
    return f"{change.figure.name} {duration(change.before)} -> {duration(change.after)}"


def _spent(diagnosis: Diagnosis) -> Iterator[str]:
    total = max(1e-9, sum(diagnosis.parts.values()))
    yield ""
    yield "Where the requests' time went"
    for part, seconds in sorted(diagnosis.parts.items(), key=lambda pair: -pair[1]):
        if seconds / total >= 0.01:
            yield f"  {seconds / total:4.0%}  {part.value}"


def _sure(tried: Tried) -> Iterator[str]:
    if not tried.num_requests:
        return
    yield ""
    text = (
        f"How sure: step times fit within {tried.seconds_fit:.0%} (median); {tried.num_requests:,}"
        " requests were replayed"
    )
    if tried.replayed[1]:
        replayed, recorded = map(duration, tried.replayed)
        text += (
            f"; unchanged, the replay has {tried.figure.name} {replayed}, the recording {recorded}."
            " Intervals hold 9 of 10 resamples of the requests, and that difference"
        )
    yield from wrapped(text, 0)


def wrapped(text: str, indent: int) -> list[str]:
    """Lines of a terminal's width; the first at ``indent``, the others two further."""
    return wrap(
        text,
        WIDTH,
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + 2),
        break_on_hyphens=False,
        break_long_words=False,
    )
