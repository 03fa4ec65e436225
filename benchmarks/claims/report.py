"""A claim as one line, and all of them as a file with where they were measured."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.environment import environment_text, write_record


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One measured claim.

    Attributes:
        name: The script's.
        claim: What is compared with what.
        measured: Medians, with their unit.
        conditions: All that a reader needs to judge or repeat it.
        target: What was promised, if anything was.
        met: Whether it is; ``None`` without a target or a measurement.
        figures: Every number behind ``measured``, by round.
        recorded: Commit and date of the former run that measured it, if this one could not.
    """

    name: str
    claim: str
    measured: str
    conditions: str
    target: str | None = None
    met: bool | None = None
    figures: dict[str, Any] = field(default_factory=dict)
    recorded: str | None = None

    def line(self) -> str:
        return f"{self.claim} | {self.measured}{self.verdict()} | {self.conditions}"

    def verdict(self) -> str:
        former = f"; measured {self.recorded}" if self.recorded else ""
        if self.target is None:
            return former
        word = {True: "met", False: "MISSED", None: "not measured"}[self.met]
        return f"; target {self.target}: {word}{former}"


def keep_recorded(claims: Sequence[Claim], folder: Path) -> list[Claim]:
    """The claims; what lacks its data stands as it was recorded in ``folder`` before."""
    path = folder / "claims.json"
    former = json.loads(path.read_text()) if path.is_file() else {"claims": []}
    kept = {}
    for fields in former["claims"]:
        claim = Claim(**fields)
        if claim.met is not None:
            recorded = claim.recorded or f"at commit {former['commit']} on {former['date']}"
            kept[claim.claim] = replace(claim, recorded=recorded)
    return [kept.get(c.claim, c) if c.target is not None and c.met is None else c for c in claims]


def write_claims(claims: Sequence[Claim], where: dict[str, Any], folder: Path) -> None:
    """``claims.json`` with every figure, ``claims.md`` to read."""
    record = {**where, "claims": [asdict(claim) for claim in claims]}
    rows = [f"| {c.claim} | {c.measured}{c.verdict()} | {c.conditions} |" for c in claims]
    table = "\n".join(("| claim | measured | conditions |", "|---|---|---|", *rows))
    text = f"{environment_text(where)}\n{table}"
    write_record(folder / "claims", "Claims, measured", text, record)
