"""Recordings of several replicas behind one router, and the ways of their requests."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import numpy as np

from twostroke.core.errors import ConfigError
from twostroke.inspector.fleet.occupancy import Levels, Occupancy, imbalance_of
from twostroke.inspector.recording import Recording
from twostroke.inspector.source import Description, Kind
from twostroke.observability.fleet_file import read_fleet_file
from twostroke.observability.routes import RouteEvent, RouteReason

MAX_SHOWN = 64  # replicas; each is a file that is read to its end
FINE = 1024  # columns over which the figures of the whole time are taken


class ReplicaFacts(msgspec.Struct):
    """One replica over the whole time.

    Attributes:
        requests: How many were sent to it.
        prompt_tokens: Tokens of their prompts, without refused requests.
        prefix_tokens: How many of these the router knew it had got before.
        refused: Requests that it refused early.
        steps: How many it took.
    """

    requests: int = 0
    prompt_tokens: int = 0
    prefix_tokens: int = 0
    refused: int = 0
    steps: int = 0
    num_blocks: int = 0


class FleetFacts(msgspec.Struct):
    """The answer of ``/v1/inspect/fleet``.

    Attributes:
        shown: The replica whose steps this page shows.
        reasons: How many requests were routed for each reason.
        imbalance: Requests of the busiest replica, running and waiting, as a multiple of the mean
            of all, over the whole time; 1 is even. ``None``: nothing ran.
        ready: Share of the recordings that is read, up to 1.
    """

    router: str
    shown: int
    replicas: list[ReplicaFacts]
    reasons: dict[str, int]
    first_time: float
    last_time: float
    imbalance: float | None
    ready: float


class Strip(msgspec.Struct):
    """One replica between two times, a number a column; ``step`` is the one under way then."""

    running: list[float]
    waiting: list[float]
    kv: list[float]
    step: list[int]


def strip_of(level: Levels, step_of_row: Callable[[int], int] | None) -> Strip:
    """The strip of an engine; without steps, where they cannot be looked at."""
    return Strip(
        level.running.round(3).tolist(),
        level.waiting.round(3).tolist(),
        level.kv.round(4).tolist(),
        [] if step_of_row is None else [step_of_row(row) for row in level.row.tolist()],
    )


class Strips(msgspec.Struct):
    """The answer of ``/v1/inspect/fleet/occupancy``.

    Attributes:
        imbalance: For each column, the measure of ``FleetFacts``; 0 where nothing ran.
        routed: Requests routed in each column, by reason.
    """

    begin: float
    end: float
    replicas: list[Strip]
    imbalance: list[float]
    routed: dict[str, list[int]]


class ShownRoute(msgspec.Struct):
    """A route; ``step`` ended the request, or is the first after it; -1: the replica took none."""

    route: RouteEvent
    step: int


class _Replica(Recording):
    """A recording that says that it is one of several."""

    def __init__(
        self,
        path: Path,
        kind: Kind,
        name: str,
        configuration: Mapping[str, object] | None,
        place: tuple[int, int],
    ) -> None:
        number, count = place
        super().__init__(path, kind, f"{name}, replica {number}", configuration)
        self._fleet = {"replica": number, "replicas": count}

    def describe(self) -> Description:
        description = super().describe()
        description.configuration["fleet"] = self._fleet
        return description


class RecordedFleet:
    """What the page of a fleet shows.

    Args:
        path: The file that ``observability/fleet_file.py`` describes.

    Attributes:
        replicas: By index; one that took no step has no recording.

    Raises:
        ConfigError: It, or one of the recordings that it names, cannot be read.
    """

    def __init__(
        self,
        path: Path,
        kind: Kind = "recording",
        name: str | None = None,
        configuration: Mapping[str, object] | None = None,
    ) -> None:
        head, self.routes = read_fleet_file(path)
        count = len(head.recordings)
        if count > MAX_SHOWN:
            raise ConfigError(
                f"{path} names {count} replicas, and {MAX_SHOWN} are shown at most",
                hint="open some of the recordings that it names, one by one",
            )
        self.router = head.router
        self.replicas: list[Recording | None] = []
        try:
            for number, recording in enumerate(head.recordings):
                file = path.parent / recording
                is_idle = file.stat().st_size == 0
                shown = name or path.name
                self.replicas.append(
                    None if is_idle else _Replica(file, kind, shown, configuration, (number, count))
                )
        except OSError as error:
            self.close()
            message = f"cannot read {error.filename}, which {path} names"
            raise ConfigError(message, hint="keep the files in one folder") from error
        except BaseException:
            self.close()
            raise
        self._times = [route.time for route in self.routes]
        bounds = [replica.describe() for replica in self.replicas if replica is not None]
        if not bounds:
            raise ConfigError(f"no replica of {path} took a step", hint="simulate more requests")
        self.begin = min([bound.first_time for bound in bounds] + self._times[:1])
        self.end = max(bound.last_time for bound in bounds)

    def close(self) -> None:
        for replica in self.replicas:
            if replica is not None:
                replica.close()

    @property
    def first(self) -> int:
        """The first replica that took steps."""
        return next(number for number, found in enumerate(self.replicas) if found is not None)

    def facts(self, shown: int) -> FleetFacts:
        """Figures of the whole time; those of what is not read yet are missing."""
        replicas = [ReplicaFacts() for _ in self.replicas]
        ready = 1.0
        for facts, replica in zip(replicas, self.replicas, strict=True):
            if replica is not None:
                found = replica.describe()
                facts.steps, facts.num_blocks = replica.num_steps, found.num_blocks
                ready = min(ready, found.ready)
        for route in self.routes:
            facts = replicas[route.replica]
            if route.refused:
                facts.refused += 1
                continue
            facts.requests += 1
            facts.prompt_tokens += route.prompt_tokens
            if route.reason is RouteReason.PREFIX:
                facts.prefix_tokens += route.prefix_tokens
        load = self._loads(self._levels(self.begin, self.end, FINE))
        mean = load.mean(axis=0).sum()
        return FleetFacts(
            router=self.router,
            shown=shown,
            replicas=replicas,
            reasons=dict(Counter(route.reason.value for route in self.routes)),
            first_time=self.begin,
            last_time=self.end,
            imbalance=round(float(load.max(axis=0).sum() / mean), 3) if mean > 0 else None,
            ready=ready,
        )

    def strips(self, begin: float, end: float, columns: int) -> Strips:
        """Occupancy and routes between two times."""
        levels = self._levels(begin, end, columns)
        routed: dict[str, list[int]] = {}
        first, last = bisect_right(self._times, begin - 1e-12), bisect_right(self._times, end)
        for route in self.routes[first:last]:
            counts = routed.setdefault(route.reason.value, [0] * columns)
            counts[min(columns - 1, int((route.time - begin) / (end - begin) * columns))] += 1
        return Strips(
            begin=begin,
            end=end,
            replicas=[
                strip_of(level, replica.step_of_row if replica else None)
                for replica, level in zip(self.replicas, levels, strict=True)
            ],
            imbalance=imbalance_of(levels).round(3).tolist(),
            routed=routed,
        )

    def latest_routes(self, before: float, count: int, replica: int | None) -> list[ShownRoute]:
        """The last ``count`` routes up to a time, the latest first; of one replica, or of all."""
        latest: list[ShownRoute] = []
        for index in range(bisect_right(self._times, before) - 1, -1, -1):
            route = self.routes[index]
            if replica is None or route.replica == replica:
                latest.append(ShownRoute(route, self._step_of(route)))
            if len(latest) >= count:
                break
        return latest

    def _step_of(self, route: RouteEvent) -> int:
        replica = self.replicas[route.replica]
        if replica is None:
            return -1
        end = replica.end_of(route.request_id)
        return min(replica.step_at(route.time) + 1, replica.last_step) if end is None else end

    def _levels(self, begin: float, end: float, columns: int) -> list[Levels]:
        idle = Occupancy()
        occupancies = (idle if found is None else found.occupancy for found in self.replicas)
        return [occupancy.levels(begin, end, columns) for occupancy in occupancies]

    def _loads(self, levels: list[Levels]) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
        """Requests, running and waiting, by replica and column."""
        return np.array([level.running + level.waiting for level in levels])
