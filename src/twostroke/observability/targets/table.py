"""How targets stand, as a table on a terminal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TextIO

from twostroke.observability.tables import print_table
from twostroke.observability.targets.watch import TargetReport


def print_targets(reports: Iterable[TargetReport], stream: TextIO) -> None:
    """Value and burn rate of the last hour, and the verdict of it and of the last five minutes."""
    rows = []
    for report in reports:
        latest, hour = report.windows[1:]
        value = "none" if hour.value is None else f"{hour.value:.4g}"
        rows.append((report.target, value, f"{hour.burn_rate:.2f}", hour.verdict, latest.verdict))
    header = ("Target", "value", "burn rate", "last hour", "last 5 minutes")
    print_table(header, rows, stream)
