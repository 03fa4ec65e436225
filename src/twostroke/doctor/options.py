"""Options of the doctor; the command line derives its flags from these fields."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from twostroke.core.flags.declared import TIME, check_fields, within
from twostroke.core.targets import Target, parse_targets


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorOptions:
    """What is looked at, and how it is told."""

    target: tuple[str, ...] = ()
    """What is good, as `twostroke serve --target` has it: `ttft=p95:0.3`, `tpot=p50:25ms` (repeat
    the flag for more); by default the server's own targets.
    """
    window: Annotated[float | None, TIME, within(1, 10**6)] = None
    """Look at so much of the latest time (accepts 60s); by default at all that is there."""
    watch: Annotated[float | None, TIME, within(1, 86_400)] = None
    """Look again every so often (accepts 30s), until Ctrl-C."""
    proof: bool = True
    """Replay the traffic with flags changed; `--no-proof` names the causes alone."""
    json: bool = False
    """Print JSON instead of text."""

    def __post_init__(self) -> None:
        check_fields(self)
        parse_targets(self.target)

    def targets(self) -> tuple[Target, ...]:
        """The targets of the flags."""
        return parse_targets(self.target)
