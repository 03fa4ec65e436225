"""The page of the record: shares by how a choice is made, by model, and the misses by cause."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any

from benchmarks.planner.causes import TEXTS, MissCause, find_cause
from benchmarks.planner.measured_choices import EDGE, TOLERANCE, Choice, Prediction
from benchmarks.planner.predictions import MEASURED_WAY
from benchmarks.simulator.servers.measured import ServingRow

TARGET = 0.95
SHOWN_MISSES = 25
Judged = Mapping[str, Sequence[Choice]]


def report(
    rows: Sequence[ServingRow], predictions: Mapping[ServingRow, Prediction], judged: Judged
) -> str:
    """The page.

    Args:
        predictions: By simulations of the runs that were measured.
    """
    middle = judged[MEASURED_WAY]
    lines = [
        f"{len(rows)} measured servers on H100: none of the bursts of SGLang, since a plan is for",
        "traffic that stays, and none with answers of more than 1,024 tokens.",
        f"{len(middle):,} questions, each a target that some of four or more measured servers"
        " keep.",
        "",
        f"**Cost**: the real cost is at most {TOLERANCE:.0%} above the best measured one's, which"
        " is what is",
        f"wanted of {TARGET:.0%}; a server that is too full for the target costs less. **Target**:"
        " the real",
        f"latency is at most {TOLERANCE:.0%} above it. **Right** is both.",
        "",
        "| chosen by | questions | right | cost | target | too dear | target missed | nothing |",
        "|---|---|---|---|---|---|---|---|",
        *(_shares(name, choices) for name, choices in judged.items()),
        "",
        "Those who measured kept each client busy for ten rounds, and their means have the first,"
        " when all",
        "prompts come at once: twice the TTFT of traffic that stays, which is what a plan is for."
        " *As",
        "measured* has a tenth of the simulation's first round in its means; all that follows is of"
        " that.",
        f"A question is clear if no measured latency is within {EDGE:.0%} of its target. Of"
        " distinct questions",
        "each set of servers that keep the target counts once: a target for first tokens that all",
        "keep asks nothing new.",
        "",
        *_causes(middle, predictions),
        *_by_servers(rows, middle, predictions),
    ]
    wrong = sorted((c for c in middle if not c.is_right), key=lambda c: -min(c.excess, 1e9))
    lines += ["", f"The {min(SHOWN_MISSES, len(wrong))} dearest of {len(wrong)} misses:", ""]
    lines += [f"- {described(choice)}" for choice in wrong[:SHOWN_MISSES]]
    return "\n".join(lines) + "\n\n"


def _shares(name: str, choices: Sequence[Choice]) -> str:
    counts = Counter(kind(choice) for choice in choices)
    shares = [
        counts["right"] / len(choices),
        fmean(choice.costs_little for choice in choices),
        fmean(choice.kept for choice in choices),
        *(counts[each] / len(choices) for each in KINDS[1:]),
    ]
    return f"| {name} | {len(choices):,} | {' | '.join(f'{each:.1%}' for each in shares)} |"


def _causes(choices: Sequence[Choice], predictions: Mapping[ServingRow, Prediction]) -> list[str]:
    """The misses, by what was mistaken."""
    causes: dict[str, list[MissCause]] = defaultdict(list)
    for choice in choices:
        if not choice.is_right:
            cause = find_cause(choice, predictions)
            causes[cause.name].append(cause)
    lines = [
        "By simulations, why the others are not right. Predicted over measured is of the server"
        " and the",
        "figure that were mistaken: the chosen one's where the target is missed, else the best"
        " one's.",
        "",
        "| cause | questions | share | predicted / measured: P10 | median | P90 |",
        "|---|---|---|---|---|---|",
    ]
    for name, text in TEXTS.items():
        ratios = sorted(cause.predicted for cause in causes[name])
        if not ratios:
            continue
        cells = [ratios[int(part * (len(ratios) - 1))] for part in (0.1, 0.5, 0.9)]
        share = len(ratios) / len(choices)
        figures = " | ".join(f"{each:.2f}" for each in cells)
        lines.append(f"| {text} | {len(ratios)} | {share:.1%} | {figures} |")
    return lines


def _by_servers(
    rows: Sequence[ServingRow],
    middle: Sequence[Choice],
    predictions: Mapping[ServingRow, Prediction],
) -> list[str]:
    lines: list[str] = []
    lines += ["", "By simulations, by stack and model:", ""]
    lines += ["| servers | questions | right | too dear | target missed | nothing | TPOT | rate |"]
    lines += ["|---|---|---|---|---|---|---|---|"]
    of_servers: dict[str, list[ServingRow]] = defaultdict(list)
    for row in rows:
        of_servers[servers(row)].append(row)
    groups: dict[str, list[Choice]] = defaultdict(list)
    for choice in middle:
        groups[servers(choice.best)].append(choice)
    for name, group in groups.items():
        counts = Counter(kind(choice) for choice in group)
        cells = " | ".join(f"{counts[each]}" for each in KINDS)
        pairs = [(row, predictions[row]) for row in of_servers[name]]
        tpot = median(each.tpot / row.tpot for row, each in pairs)
        rate = median(each.rate * row.seconds / row.concurrency for row, each in pairs)
        lines.append(f"| {name} | {len(group)} | {cells} | {tpot:.2f} | {rate:.2f} |")
    lines += ["", "TPOT and rate: medians of predicted over measured."]
    overshoots = [choice.overshoot for choice in middle if kind(choice) == "target missed"]
    excesses = [choice.excess for choice in middle if kind(choice) == "too dear"]
    devices = fmean(c.chosen is not None and c.chosen.ranks == c.best.ranks for c in middle)
    lines += [
        f"The number of devices is the best one's in {devices:.1%}. A target that is missed is"
        f" missed by {median(overshoots):.0%}",
        f"in the median, and what is too dear by {median(excesses):.0%}: the next server that was"
        " measured has half or",
        "twice the requests at once. How far the cost model is from each kind of server is in",
        "[its validation](../../docs/validation/servers.md).",
    ]
    return lines


def servers(row: ServingRow) -> str:
    """Stack, model and format."""
    return f"{row.backend} {row.model} {row.weights}"


KINDS = ("right", "too dear", "target missed", "nothing chosen")


def kind(choice: Choice) -> str:
    """Which of ``KINDS`` a choice is."""
    if choice.is_right:
        return "right"
    if choice.chosen is None:
        return "nothing chosen"
    return "too dear" if choice.kept else "target missed"


def described(choice: Choice) -> str:
    """What was asked, chosen and best."""
    best = f"best {choice.best.ranks} x H100 for {choice.best.concurrency} at once"
    if choice.chosen is None:
        return f"{choice.question.name}\n  nothing chosen; {best}"
    chosen = choice.chosen
    really = f"really {1e3 * chosen.tpot:.1f} ms, TTFT {1e3 * chosen.ttft:.0f} ms"
    return (
        f"{choice.question.name}\n  chosen {chosen.ranks} x H100 for {chosen.concurrency}"
        f" ({really}),\n  {best}: {choice.excess:+.0%}"
    )


def as_fields(choices: Sequence[Choice]) -> list[dict[str, Any]]:
    """Choices as plain values."""
    return [
        {
            "question": choice.question.name,
            "chosen": None
            if choice.chosen is None
            else [choice.chosen.ranks, choice.chosen.concurrency],
            "best": [choice.best.ranks, choice.best.concurrency],
            "excess": None if choice.chosen is None else round(choice.excess, 4),
            "kind": kind(choice),
        }
        for choice in choices
    ]
