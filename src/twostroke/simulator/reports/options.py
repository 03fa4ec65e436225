"""Options of the reports; the command line derives its flags from these fields."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Literal

from twostroke.core.errors import ConfigError
from twostroke.core.files import is_folder
from twostroke.core.targets import MILLISECONDS_FROM, parse_targets
from twostroke.observability.latency import TARGETS


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputOptions:
    """What is reported, and where."""

    slo: str | None = None
    """Targets in seconds that a good request meets, such as ttft=0.5,tpot=0.05 (also e2el)."""
    target: tuple[str, ...] = ()
    """What a server would watch, as its --target (repeat the flag for more): value, burn rate and
    verdict at the end of the run, on one replica.
    """
    sweep: tuple[str, ...] = ()
    """Values of any flag, side by side: rate=1:16 (doubling), rate=1:16:6 (six), gpu=h100,l40s."""
    find: Literal["rate"] | None = None
    """rate: the highest at which nine of ten requests meet --slo and the queue does not grow."""
    interval: bool = False
    """Run also with each end of the cost model's interval, and report the range of results."""
    compare: tuple[Path, ...] = ()
    """An earlier report (JSON) to show beside this one (repeat the flag for more)."""
    compare_only: bool = False
    """Simulate nothing: show the reports of --compare beside each other."""
    output_json: Path | None = None
    """Write all results here."""
    output_html: Path | None = None
    """Write a web page with charts here; it needs no network."""
    output_csv: Path | None = None
    """Write one row per request here."""
    metrics: Path | None = None
    """Write what the live server's /metrics would say at the end here."""
    record: Path | None = None
    """Write every step's event to this JSONL file; of several replicas to FILE.0.jsonl ..."""
    inspect: bool = False
    """Show the run in the browser when it has ended: steps, requests, reasons, at any speed."""
    jump: bool = True
    """Take runs of decode steps in one go; the results are the same, byte for byte."""

    def __post_init__(self) -> None:
        self.targets()
        parse_targets(self.target)
        if self.find is not None:
            self._check_find()
        if self.compare_only:
            if not self.compare:
                raise ConfigError(
                    "--compare-only needs --compare",
                    hint="give both: --compare-only --compare a.json --compare b.json",
                )
            for name in ("find", "target", "sweep", "output_csv", "metrics", "record", "inspect"):
                if getattr(self, name):
                    flag = "--" + name.replace("_", "-")
                    raise ConfigError(
                        f"{flag} needs a simulation", hint=f"leave out {flag} or --compare-only"
                    )
        for name in ("output_json", "output_html", "output_csv", "metrics", "record"):
            path: Path | None = getattr(self, name)
            if path is not None and not is_folder(path.parent):
                flag = "--" + name.replace("_", "-")
                raise ConfigError(
                    f"{path.parent} is no folder", hint=f"make it, or give another {flag}"
                )
            if path is not None and is_folder(path):
                flag = "--" + name.replace("_", "-")
                raise ConfigError(f"{path} is a folder", hint=f"give {flag} a file in it")

    def _check_find(self) -> None:
        if self.slo is None:
            raise ConfigError(
                "--find rate needs --slo", hint="give both: --find rate --slo ttft=0.5,tpot=0.05"
            )
        for name in ("sweep", "record", "inspect", "metrics", "target"):
            if getattr(self, name):
                raise ConfigError(
                    f"--{name} is of one rate, and --find tries many",
                    hint=f"leave out --{name}, or give the --rate that was found",
                )

    def targets(self) -> dict[str, float]:
        """Metric (``ttft``, ``tpot``, ``e2el``) to the most seconds a good request may take."""
        limits: dict[str, float] = {}
        for text in self.slo.split(",") if self.slo else ():
            name, _, limit = text.strip().partition("=")
            try:
                limits[name] = float(limit)
            except ValueError:
                limits[name] = -1
            if name not in TARGETS or not 0 < limits[name] < inf:
                hint = "in seconds, such as --slo ttft=0.5,tpot=0.05"
                raise ConfigError(
                    f"--slo {text!r} is not ttft=, tpot= or e2el= and a number of seconds",
                    hint=hint,
                )
            if limits[name] >= MILLISECONDS_FROM[name]:
                raise ConfigError(
                    f"--slo {name}={limit} means {limits[name]:g} seconds",
                    hint=f"give seconds: {name}={limits[name] / 1e3:g}, if milliseconds were meant",
                )
        return limits
