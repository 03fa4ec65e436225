"""The autoscaler: how many replicas a pool needs, from what its replicas say of themselves.

Pure: what runs a pool asks it in equal intervals, and starts and drains replicas accordingly.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Literal, NamedTuple

from twostroke.core.errors import ConfigError
from twostroke.core.flags.declared import check_fields, within
from twostroke.core.flags.values import require

ScalingSignal = Literal["kv", "utilisation", "requests"]
# What is aimed at, by signal: of the blocks, of the time, requests.
TARGETS: dict[ScalingSignal, float] = {"kv": 0.3, "utilisation": 0.7, "requests": 16.0}
# A pool that is this near to what it needs stays as it is.
TOLERANCE = 0.1


class ReplicaReading(NamedTuple):
    """One replica at a moment.

    Attributes:
        kv: How full it is: KV blocks that its requests hold and that its waiting ones will need, as
            a share of all its blocks; where ``--max-num-seqs`` is reached before, the share of
            that. Above 1 some have to wait.
        busy: Share of the time since the reading before in which a step ran.
        requests: Unfinished ones.
        ttft: Seconds until the first token of a request that comes now; ``None``: not predicted.
    """

    kv: float
    busy: float
    requests: int
    ttft: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoscalerOptions:
    """When a pool of replicas grows and shrinks."""

    autoscale: ScalingSignal | None = None
    """Start and end replicas by how full KV cache and batch are, by busy time, or by requests."""
    min_replicas: Annotated[int, within(0, 10_000)] = 1
    """Least replicas; 0: none while there are no requests."""
    max_replicas: Annotated[int, within(1, 10_000)] = 8
    """Most replicas, with those that start."""
    autoscale_target: Annotated[float | None, within(0.01, 10_000)] = None
    """What each replica should have: 0.3 (of its KV blocks), 0.7 (of the time), 16 (requests)."""
    autoscale_ttft: Annotated[float | None, within(0.001, 3600)] = None
    """Also grow where a new request's first token would come later than this, in seconds."""
    autoscale_interval: Annotated[float, within(0.1, 3600)] = 15.0
    """Seconds between two decisions."""
    scale_down_after: Annotated[float, within(0, 86_400)] = 300.0
    """Seconds for which fewer replicas must have been enough before any is ended."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.min_replicas > self.max_replicas:
            raise ConfigError(
                f"--min-replicas {self.min_replicas} is more than --max-replicas"
                f" {self.max_replicas}",
                hint="give no more as the least than as the most",
            )
        if self.autoscale == "utilisation":  # it is 1 at most, and 1 must be too much
            largest_target = 1 / (1 + TOLERANCE)
            allowed = f"{largest_target:.1f} or less with --autoscale utilisation"
            require(self.target <= largest_target, "--autoscale-target", self.target, allowed)

    def without_effect(self) -> list[str]:
        """The flags that were given, and mean nothing without a signal."""
        if self.autoscale is not None:
            return []
        given = [own.name for own in fields(self) if getattr(self, own.name) != own.default]
        return ["--" + name.replace("_", "-") for name in given]

    @property
    def target(self) -> float:
        """What each replica should have of the signal."""
        if self.autoscale_target is not None:
            return self.autoscale_target
        return TARGETS[self.autoscale or "kv"]


class Autoscaler:
    """Decides how many replicas there should be.

    The rule is that of Kubernetes' HorizontalPodAutoscaler: the signal's sum over all replicas,
    divided by what each should have, unless that is within a tenth of what there is. More replicas
    are wanted at once, fewer when no decision of the last ``scale_down_after`` seconds wanted more
    (https://kubernetes.io/docs/concepts/workloads/autoscaling/horizontal-pod-autoscale/).
    """

    def __init__(self, options: AutoscalerOptions) -> None:
        self._options = options
        self._wanted: deque[tuple[float, int]] = deque()  # by time, of the last seconds

    def decide(
        self, now: float, readings: Sequence[ReplicaReading], starting: int, held: int = 0
    ) -> int:
        """Decide how many replicas there should be, with those that start.

        Args:
            now: In seconds; never less than at the call before.
            readings: What replicas say that take requests.
            starting: Replicas that will take requests soon.
            held: Requests that wait since no replica takes any.
        """
        options, present = self._options, len(readings) + starting
        wanted = self._need(readings, present)
        if held:
            wanted = max(wanted, 1)
        if not self._wanted:  # what there is was wanted before
            self._wanted.append((now, present))
        self._wanted.append((now, wanted))
        while self._wanted[0][0] < now - options.scale_down_after:
            self._wanted.popleft()
        if wanted < present:
            wanted = min(present, max(number for _, number in self._wanted))
        return min(max(wanted, options.min_replicas), options.max_replicas)

    def _need(self, readings: Sequence[ReplicaReading], present: int) -> int:
        """How many the readings ask for; ``present`` where that is near enough."""
        options = self._options
        signal = options.autoscale or "kv"
        need = math.fsum(_value(reading, signal) for reading in readings) / options.target
        near = readings and abs(need - present) <= TOLERANCE * present and need > 0
        wanted = present if near else math.ceil(need)
        late = [reading.ttft for reading in readings if reading.ttft is not None]
        if options.autoscale_ttft is not None and late:
            # A queue that is twice too long needs twice as many to share it.
            factor = math.fsum(late) / len(late) / options.autoscale_ttft
            if factor > 1 + TOLERANCE:
                wanted = max(wanted, math.ceil(len(readings) * factor))
        return wanted


def _value(reading: ReplicaReading, signal: ScalingSignal) -> float:
    if signal == "kv":
        return reading.kv
    return reading.busy if signal == "utilisation" else float(reading.requests)
