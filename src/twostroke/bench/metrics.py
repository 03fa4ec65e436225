"""From what clients saw to latencies, throughput and goodput, defined as in `vllm bench serve`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from twostroke.observability.latency import (
    PERCENTILES,
    LatencyDistribution,
    meets_targets,
    time_per_output_token,
)


@dataclass(slots=True)
class RequestRecord:
    """What one client saw; times in seconds after its request was sent.

    Attributes:
        sent: When, in seconds after the start of the run.
        ttft: Time to the first event with a choice.
        itls: Gaps between successive events with a choice. A server may put several tokens into one
            event.
        e2el: Time to the last such event.
        accepted: Tokens that the server had guessed before it drew them.
        rejected: Guesses that were wrong.
        counted: The server counted the tokens; else they are the prompt's as sent and
            the events.
        error: Why it failed; its other fields then mean nothing.
    """

    sent: float = 0.0
    input_len: int = 0
    output_len: int = 0
    ttft: float = 0.0
    itls: list[float] = field(default_factory=list)
    e2el: float = 0.0
    counted: bool = True
    accepted: int = 0
    rejected: int = 0
    error: str | None = None

    @property
    def tpot(self) -> float:
        """Mean time per output token after the first; 0 if there is no second."""
        return time_per_output_token(self.ttft, self.e2el, self.output_len)

    def meets(self, targets: Mapping[str, float]) -> bool:
        """Whether no target (``ttft``, ``tpot``, ``e2el``: seconds) is exceeded."""
        return meets_targets(self, targets)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeMetrics:
    """One run: latencies in seconds of requests that succeeded, throughput per second."""

    duration: float
    completed: int
    failed: int
    input_tokens: int
    output_tokens: int
    goodput: float | None
    ttft: LatencyDistribution
    tpot: LatencyDistribution
    itl: LatencyDistribution
    e2el: LatencyDistribution
    accepted: int = 0
    rejected: int = 0

    @property
    def request_throughput(self) -> float:
        return self.completed / self.duration

    @property
    def output_throughput(self) -> float:
        return self.output_tokens / self.duration

    @property
    def total_token_throughput(self) -> float:
        return (self.input_tokens + self.output_tokens) / self.duration


def summarize(
    records: Sequence[RequestRecord],
    duration: float,
    targets: Mapping[str, float],
    percentiles: Sequence[int] = PERCENTILES,
) -> ServeMetrics:
    """The metrics of a run of ``duration`` seconds; goodput only where there are ``targets``."""

    def distribution(values: Sequence[float]) -> LatencyDistribution:
        return LatencyDistribution.of(values, percentiles)

    good = [record for record in records if record.error is None]
    return ServeMetrics(
        duration=duration,
        completed=len(good),
        failed=len(records) - len(good),
        input_tokens=sum(record.input_len for record in good),
        output_tokens=sum(record.output_len for record in good),
        goodput=sum(record.meets(targets) for record in good) / duration if targets else None,
        ttft=distribution([record.ttft for record in good]),
        # A single token has no time per further token.
        tpot=distribution([record.tpot for record in good if record.output_len > 1]),
        itl=distribution([gap for record in good for gap in record.itls]),
        e2el=distribution([record.e2el for record in good]),
        accepted=sum(record.accepted for record in good),
        rejected=sum(record.rejected for record in good),
    )
