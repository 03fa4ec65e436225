"""Proof of advice: the recorded traffic with one setting changed, against the same unchanged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from twostroke.core.targets import Target
from twostroke.doctor.figures import MEAN_E2E, SHOWN, Change, Figure, RequestTimes, compare
from twostroke.doctor.levers import E2E, OBJECTIVES, Treatment, all_levers
from twostroke.doctor.replayed import Replayer

# Advice must take that much off its figure, in 19 of 20 resamples at least a little.
MIN_SAVED = 0.05
# ... and may cost the mean request that much of its whole time at most.
MAX_HARM = 0.05
# Levers of so many causes are tried, the largest causes first.
MAX_CAUSES = 3
# A milder value of a flag does where it gives that share of what the best one gives.
NEARLY = 0.9


@dataclass(frozen=True)
class TriedLever:
    """What a lever does.

    Attributes:
        cause: The cause that it is for.
        main: The figure that it is for.
        others: The other figures that change, for better or worse.
        verdict: ``helps``, or why it is no advice.
    """

    cause: str
    lever: Treatment
    main: Change
    others: list[Change]
    verdict: str

    @property
    def helps(self) -> bool:
        return self.verdict == "helps"


@dataclass
class Tried:
    """All that was tried.

    Attributes:
        advice: What helps, best first; of several values of one flag the best.
        refused: What does not.
        error: How far the replay of what was recorded is off in the first objective, as a share.
        replayed: That figure in the replay, and as recorded.
        seconds_fit: Median error of the fitted step times, as a share.
        num_requests: How many were replayed.
    """

    advice: list[TriedLever] = field(default_factory=list)
    refused: list[TriedLever] = field(default_factory=list)
    error: float = 0.0
    figure: Figure = E2E
    replayed: tuple[float, float] = (0.0, 0.0)
    seconds_fit: float = 0.0
    num_requests: int = 0


def prove_levers(
    replayer: Replayer,
    causes: Sequence[str],
    missed: Target | None = None,
    block_bytes: int = 0,
    progress: Callable[[str, int, int], None] = lambda *_: None,
) -> Tried:
    """Try the levers of the first causes.

    Args:
        missed: A target that is missed: its figure counts, whatever the cause.
        progress: Called with what is tried, its number, and how many there are.
    """
    now = replayer.setting()
    levers = all_levers(causes[:MAX_CAUSES], now, block_bytes)
    tried = Tried(seconds_fit=replayer.fit.median_error, num_requests=len(replayer.requests))
    if not levers:
        return tried
    progress("as it was", 0, len(levers))
    before = replayer.run(now)
    tried.figure = _figure(causes[0], missed)
    there = [number for number, times in enumerate(before) if times is not None]
    kept = [times for times in before if times is not None]
    if not kept:
        return tried
    was = tried.figure.of(kept)
    recorded = tried.figure.of([replayer.recorded[number] for number in there])
    tried.replayed = was, recorded
    tried.error = min(1.0, abs(was - recorded) / recorded) if recorded else 0.0
    proofs = []
    for number, (cause, lever) in enumerate(levers, 1):
        progress(lever.command, number, len(levers))
        after = replayer.run(lever.setting)
        proofs.append(_judge(replayer, cause, lever, before, after, missed, tried.error))
    _sort(tried, proofs, causes)
    return tried


def _figure(cause: str, missed: Target | None) -> Figure:
    if missed is not None and missed.metric in ("ttft", "tpot", "e2el"):
        return Figure(missed.metric, missed.percentile or 95)
    return OBJECTIVES.get(cause, E2E)


def _judge(
    replayer: Replayer,
    cause: str,
    lever: Treatment,
    before: Sequence[RequestTimes | None],
    after: Sequence[RequestTimes | None],
    missed: Target | None,
    error: float,
) -> TriedLever:
    """What a lever does to the requests that ran on both sides."""
    pairs = [
        (request, first, second)
        for request, first, second in zip(replayer.requests, before, after)
        if first is not None and second is not None
    ]
    whom = pairs
    if cause == "one-key":  # the others are to be helped
        hot = _most_work(replayer)
        whom = [pair for pair in pairs if pair[0].tenant != hot] or pairs
    main = compare(_figure(cause, missed), *_sides(whom), error)
    mean = compare(MEAN_E2E, *_sides(whom), resamples=0)
    # How far others move: those by a few percent move by chance.
    other_changes = [
        change
        for change in (compare(figure, *_sides(whom), resamples=0) for figure in SHOWN)
        if change.figure != main.figure and abs(change.saved) >= MIN_SAVED
    ]
    verdict = "helps"
    if len(pairs) < sum(times is not None for times in before):
        verdict = "some requests do not fit any more"
    elif main.saved < MIN_SAVED or main.helps <= 0:
        verdict = "changes nothing that is sure" if main.saved > -MIN_SAVED else "makes it worse"
    elif mean.saved < -MAX_HARM:
        verdict = f"the mean request takes {-mean.saved:.0%} longer"
    return TriedLever(cause, lever, main, other_changes, verdict)


def _sides(
    pairs: Sequence[tuple[object, RequestTimes, RequestTimes]],
) -> tuple[list[RequestTimes], list[RequestTimes]]:
    return [pair[1] for pair in pairs], [pair[2] for pair in pairs]


def _most_work(replayer: Replayer) -> str:
    work: dict[str, int] = {}
    for request in replayer.requests:
        work[request.tenant] = work.get(request.tenant, 0) + request.prompt + request.output
    return max(work, key=lambda tenant: work[tenant])


def _sort(tried: Tried, proofs: Sequence[TriedLever], causes: Sequence[str]) -> None:
    """Advice best first: for the first cause, then the others; of each, what must be bought last.

    Of one flag the mildest value that gives nearly all of the best.
    """
    helping = sorted((p for p in proofs if p.helps), key=lambda p: -p.main.saved)
    by_flag: dict[str, list[TriedLever]] = {}
    for proof in helping:
        command = proof.lever.command  # two flags that are left out are two pieces of advice
        flag = command if command.startswith("leave out") else command.split()[0]
        by_flag.setdefault(flag, []).append(proof)
    order = {id(proof): place for place, proof in enumerate(proofs)}
    for same in by_flag.values():
        enough = [p for p in same if p.main.saved >= NEARLY * same[0].main.saved]
        tried.advice.append(min(enough, key=lambda p: order[id(p)]))
    tried.advice.sort(key=lambda p: (causes.index(p.cause), p.lever.is_bought, -p.main.saved))
    tried.refused = [proof for proof in proofs if not proof.helps]
