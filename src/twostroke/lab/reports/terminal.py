"""What ``twostroke lab`` prints."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from typing import TextIO

from twostroke.lab.claim import Fact, FieldClaim
from twostroke.lab.experiment import Experiment
from twostroke.lab.reports.plot import plot_text

COLUMNS = 92
Bold = Callable[[str], str]


def print_claims(claims: Sequence[FieldClaim], stream: TextIO) -> None:
    """The list: a claim by its name, and what it says."""
    longest = max(len(claim.name) for claim in claims)
    for claim in claims:
        indent = " " * (longest + 2)
        text = textwrap.fill(
            claim.text,
            COLUMNS,
            initial_indent=f"{claim.name:<{longest}}  ",
            subsequent_indent=indent,
        )
        print(text, file=stream)


def print_experiment(experiment: Experiment, bold: Bold, stream: TextIO) -> None:
    """One experiment: claim, verdict, simulated, measured here, plot."""
    claim, computed, observed = experiment.claim, experiment.computed, experiment.observed
    name, text = computed.verdict
    print(f"{claim.name}\n", file=stream)
    print(_filled(f"Claim: {claim.text}"), file=stream)
    print(_filled(f"Source: {claim.source}."), file=stream)
    print(f"\n{bold(f'Verdict: {name}.')}", file=stream)
    print(_filled(text), file=stream)
    print(f"\n{_filled(f'Simulated: {computed.on}')}", file=stream)
    _print_facts(computed.facts, stream)
    if observed is not None:
        print(f"\nMeasured here, with {experiment.model}", file=stream)
        _print_facts(observed.facts, stream)
        print(_filled(observed.text, "  "), file=stream)
    print(file=stream)
    for line in plot_text(computed.plot):
        print(f"  {line}", file=stream)


def _print_facts(facts: Sequence[Fact], stream: TextIO) -> None:
    longest = max(len(fact.what) for fact in facts)
    for fact in facts:
        begin = f"  {fact.what:<{longest}}  "
        if longest > COLUMNS // 2:
            print(_filled(f"{fact.what}: {fact.value}", "  "), file=stream)
            continue
        text = textwrap.fill(
            fact.value, COLUMNS, initial_indent=begin, subsequent_indent=" " * len(begin)
        )
        print(text, file=stream)


def _filled(text: str, indent: str = "") -> str:
    return textwrap.fill(text, COLUMNS, initial_indent=indent, subsequent_indent=indent)
