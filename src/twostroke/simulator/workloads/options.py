"""Options of a simulated workload; the command line derives its flags from these fields."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Literal

from twostroke.core.errors import ConfigError
from twostroke.core.flags.declared import Must, check_fields, within
from twostroke.workloads.lengths import MAX_TAIL

WorkloadName = Literal[
    "random",
    "sharegpt-like",
    "sessions",
    "azure-conv",
    "azure-code",
    "mooncake-conv",
    "mooncake-synthetic",
    "trace",
]
Arrivals = Literal["auto", "poisson", "gamma", "burst", "closed", "recorded"]
# Larger numbers would take all memory or time, or leave no digits to add a step to.
_MAX_COUNT = 10_000_000
Count = Annotated[int, within(1, _MAX_COUNT)]
Few = Annotated[int, within(1, 1000)]
TRACES = ("azure-conv", "azure-code", "mooncake-conv", "mooncake-synthetic", "trace")


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedWorkloadOptions:
    """Which requests come, and when."""

    workload: WorkloadName = "sharegpt-like"
    """random: given lengths; sharegpt-like: chats; sessions: several turns; trace: --trace-path."""
    trace_path: Path | None = None
    """Azure's CSV, Mooncake's JSON lines, or a recording. Or set TWOSTROKE_TRACES to a folder."""
    num_requests: Count | None = None
    """Requests to simulate; by default 1000, of a trace all."""
    rate: Annotated[float | None, within(1e-6, 1e6)] = None
    """Requests per second; default: all at once, or a trace's own. A trace is stretched to it."""
    arrivals: Arrivals = "auto"
    """auto: a trace's own, else gamma. See --burstiness, --burst-size, --concurrency (closed)."""
    burstiness: Annotated[float, within(1e-3, 1e6)] = 1.0
    """Shape of the gaps' gamma distribution: 1 is Poisson, less comes in bursts, more is evener."""
    burst_size: Count = 16
    """Requests of one burst; the bursts follow each other evenly."""
    concurrency: Count = 16
    """Requests that are under way in a closed loop."""
    think_time: Annotated[float, within(0, 1e9)] = 0.0
    """Seconds, on average (exponential), before a closed loop's or a session's next request."""
    input_len: Count = 1024
    """Tokens of a random prompt; of a session: of each turn's question."""
    output_len: Count = 128
    """Tokens of the answer to a random prompt; of a session: to each question."""
    input_p95: Count | None = None
    """The 95th percentile of long-tailed (lognormal) lengths whose mean is --input-len."""
    output_p95: Count | None = None
    """The 95th percentile around --output-len, likewise."""
    range_ratio: Annotated[float, Must("from 0 to below 1", lambda ratio: 0 <= ratio < 1)] = 0.0
    """Random lengths spread evenly from (1 - this) to (1 + this) times the given ones."""
    prefix_len: Annotated[int, within(0, _MAX_COUNT)] = 0
    """Tokens that all prompts begin with (random, sharegpt-like, sessions)."""
    turns: Few = 4
    """Questions of a session, each with all before it in the prompt."""
    priorities: Few = 1
    """Random priorities of requests or sessions, 0 the most urgent; for --policy priority."""
    tenants: Few = 1
    """API keys of requests or sessions, with loads as 1, 1/2, 1/3 ...; for --policy fair."""
    seed: int = 0
    """Same seed, same report, byte for byte."""

    def __post_init__(self) -> None:
        check_fields(self)
        self._check_together()

    def _check_together(self) -> None:
        for name, mean, p95 in (
            ("input", self.input_len, self.input_p95),
            ("output", self.output_len, self.output_p95),
        ):
            if p95 is not None:
                check_spread(name, mean, p95)
                if self.range_ratio:
                    raise ConfigError(
                        f"--range-ratio and --{name}-p95 both spread the lengths",
                        hint="leave out one of the two",
                    )
        if self.workload == "trace" and self.trace_path is None:
            raise ConfigError(
                "--workload trace needs --trace-path",
                hint="give both: --workload trace --trace-path FILE",
            )
        if self.trace_path is not None and self.workload not in TRACES:
            raise ConfigError(
                "--trace-path belongs to a trace", hint="give --workload trace --trace-path FILE"
            )
        if self.arrivals == "recorded" and self.workload not in TRACES:
            raise ConfigError(
                "--arrivals recorded needs a trace", hint="give --workload trace --trace-path FILE"
            )
        if self.arrivals in ("poisson", "gamma", "burst") and self.rate is None:
            raise ConfigError(
                f"--arrivals {self.arrivals} needs --rate",
                hint="give --rate, in requests per second",
            )
        if self.arrivals == "closed" and self.rate is not None:
            raise ConfigError(
                "a closed loop has no rate", hint="give --concurrency instead of --rate"
            )
        if self.workload == "sessions" and self.arrivals in ("closed", "recorded"):
            raise ConfigError(
                f"sessions have no {self.arrivals} arrivals",
                hint="each turn follows the one before by itself",
            )

    def without_effect(self) -> list[str]:
        """Flags with another value than their default that change nothing in this workload."""
        lengths, loops = self.workload in ("random", "sessions"), self.arrivals == "closed"
        drawn = self.workload in ("random", "sharegpt-like", "sessions")
        used = {
            "input_len": lengths,
            "output_len": lengths,
            "input_p95": lengths,
            "output_p95": lengths,
            "range_ratio": lengths,
            "prefix_len": drawn or (self.is_trace and self.trace_path is None),
            "turns": self.workload == "sessions",
            "think_time": loops or self.workload == "sessions",
            "concurrency": loops,
            "burst_size": self.arrivals == "burst",
            "burstiness": self.arrivals in ("auto", "gamma"),
        }
        defaults = {field.name: field.default for field in fields(self)}
        return [
            name
            for name, counts in used.items()
            if not counts and getattr(self, name) != defaults[name]
        ]

    @property
    def is_trace(self) -> bool:
        return self.workload in TRACES


def check_spread(name: str, mean: int, p95: int) -> None:
    """Raise ConfigError for a 95th percentile that no lognormal lengths of this mean have."""
    if not mean <= p95 <= MAX_TAIL * mean:
        raise ConfigError(
            f"--{name}-p95 must be from the mean ({mean}) to {MAX_TAIL} times as much, got {p95}",
            hint="lengths with a longer tail come from a trace: --trace-path FILE",
        )
