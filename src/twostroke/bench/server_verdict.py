"""What the server's own targets say of a run, beside what the client counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from twostroke.bench.metrics import RequestRecord
from twostroke.observability.latency import TARGETS


class TargetCounts(msgspec.Struct):
    """One entry of ``GET /v1/targets``, as far as it matters here; counts are since the start."""

    target: str
    metric: str
    limit: float
    total_observations: float = 0.0
    total_misses: float = 0.0


class _TargetList(msgspec.Struct):
    data: list[TargetCounts] = []


class ServerVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """A target of the server's over a run: requests that it counted, and good ones on both sides.

    The server counts from when a call arrived to when a token was drawn. Here the way there and
    back counts too, so requests near the limit can be good for the server alone.
    """

    target: str
    observations: int
    good: int
    good_here: int


def read_targets(body: bytes) -> dict[str, TargetCounts]:
    """The server's counts by target; none of a server that says something else."""
    try:
        entries = msgspec.json.decode(body, type=_TargetList).data
    except (msgspec.DecodeError, RecursionError):
        return {}
    return {entry.target: entry for entry in entries if entry.metric in TARGETS}


def compare_verdicts(
    before: Mapping[str, TargetCounts],
    after: Mapping[str, TargetCounts],
    records: Sequence[RequestRecord],
) -> list[ServerVerdict]:
    """The counts of the run alone: what came before it (warm-ups) is no part of it."""
    answered = [record for record in records if record.error is None]
    verdicts = []
    for name, counts in after.items():
        former = before.get(name, TargetCounts(name, counts.metric, counts.limit))
        observations = counts.total_observations - former.total_observations
        misses = counts.total_misses - former.total_misses
        timed = [r for r in answered if counts.metric != "tpot" or r.output_len > 1]
        verdicts.append(
            ServerVerdict(
                target=name,
                observations=round(observations),
                good=round(observations - misses),
                good_here=sum(record.meets({counts.metric: counts.limit}) for record in timed),
            )
        )
    return verdicts
