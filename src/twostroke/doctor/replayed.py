"""The recorded traffic once more, by the simulator, with the engine set as it was or otherwise.

Step times are those fitted to the window, requests those that came, at their times; what their
prompts share is what the events name. The machine is as fast at each moment as it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import cast

from twostroke.core.config import Batching, PolicyName, SchedulerConfig
from twostroke.core.speculation_config import Speculation
from twostroke.doctor.figures import RequestTimes
from twostroke.doctor.time_spent import fit_window
from twostroke.doctor.window import RequestReading, StepWindow
from twostroke.engine.executor import ExecutorInfo
from twostroke.questions.replay import RecordedStep
from twostroke.routing.make_router import make_router
from twostroke.routing.routers import RouterName
from twostroke.simulator.cost.estimate import CostModel, Estimate
from twostroke.simulator.fleet.clock import VirtualClock
from twostroke.simulator.fleet.executor import SimulatedExecutor
from twostroke.simulator.fleet.fleet import Fleet
from twostroke.simulator.fleet.kept_events import KeptEvents
from twostroke.simulator.fleet.pool import FixedPool
from twostroke.simulator.fleet.replica import Replica
from twostroke.simulator.replay.machine_speed import MachineSpeed
from twostroke.simulator.workloads.base import OpenLoop, RequestSpec
from twostroke.simulator.workloads.traces import CACHED_PREFIX
from twostroke.spec_decode.synthetic import SyntheticAcceptance
from twostroke.timing.recorded_steps import FittedStepTimes
from twostroke.timing.step_shape import StepShape

# Between the requests that fill the prefix cache and the first that is replayed.
LEAD_SECONDS = 10_000.0
UNKNOWN_SEQS, UNKNOWN_BUDGET = 256, 2048
# The latest requests are replayed, so many that a replay takes about a second.
MAX_REPLAYED, MAX_TOKENS_REPLAYED = 1500, 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """How a replay is set.

    Attributes:
        drafts: Whether tokens are guessed as they were.
        steady: The machine at its usual speed at all times.
        without: Index of a replica that gets no requests.
    """

    max_num_seqs: int = UNKNOWN_SEQS
    max_num_batched_tokens: int = UNKNOWN_BUDGET
    max_prefill_chunk: int | None = None
    policy: str = "fcfs"
    batching: str = "continuous"
    num_blocks: int = 0
    drafts: bool = False
    steady: bool = False
    replicas: int = 1
    router: RouterName | None = None
    without: int | None = None


@dataclass(frozen=True)
class Drafted:
    """How drafts fared: tokens for each, their acceptance, and what making one took."""

    depth: int
    acceptance: float
    seconds: float


class WindowCost:
    """Implements ``cost.estimate.CostModel``: drafts are verified as chunks, and made in time."""

    def __init__(self, times: FittedStepTimes, draft_seconds: float = 0.0) -> None:
        self._times, self._draft_seconds = times, draft_seconds

    def step(self, shape: StepShape) -> Estimate:
        plain = shape
        if shape.drafts and shape.decode_requests:
            width = 1 + shape.drafts // shape.decode_requests
            context = shape.decode_context // shape.decode_requests
            chunks = ((width, context),) * shape.decode_requests
            plain = StepShape(0, 0, (*shape.prefill, *chunks), shape.sampled)
        seconds = self._times.seconds(plain._replace(draft_rounds=0, drafts=0))
        seconds += self._draft_seconds * shape.draft_rounds * shape.sampled
        return Estimate(seconds, seconds, seconds, "compute" if shape.prefill else "memory")


class Replayer:
    """Replays the traffic of one engine, or of several that share it.

    Args:
        num_idle: Engines beside these that had no requests.

    Raises:
        ConfigError: Too few steps to fit step times to.
    """

    def __init__(self, windows: Sequence[StepWindow], num_idle: int = 0) -> None:
        self._windows, self._num_replicas = list(windows), len(windows) + num_idle
        requests = [(r, n) for n, window in enumerate(windows) for r in _whole(window)]
        requests.sort(key=lambda pair: pair[0].arrival)
        self._pairs = _that_fit(requests)
        self.requests = [request for request, _ in self._pairs]
        self._origin = self.requests[0].arrival if self.requests else 0.0
        self._times = [fit_window([window]) for window in windows]
        self._drafted = [_drafted(window) for window in windows]
        self._speeds = [
            _speed(window, WindowCost(times)) for window, times in zip(windows, self._times)
        ]
        self.fit = self._times[0]
        self.recorded = [_as_recorded(request) for request in self.requests]

    @property
    def is_fleet(self) -> bool:
        return self._num_replicas > 1

    def setting(self) -> Setting:
        """How the engine was set."""
        recorded = self._windows[0].settings
        return Setting(
            max_num_seqs=recorded.max_num_seqs or self._unknown_seqs(),
            max_num_batched_tokens=recorded.max_num_batched_tokens or UNKNOWN_BUDGET,
            max_prefill_chunk=recorded.max_prefill_chunk,
            policy=recorded.policy if recorded.policy in ("fcfs", "priority", "fair") else "fcfs",
            batching=recorded.batching,
            num_blocks=recorded.num_blocks,
            drafts=recorded.has_drafts,
            replicas=self._num_replicas,
        )

    def run(self, setting: Setting) -> list[RequestTimes | None]:
        """The requests under a setting; ``None``: one that could not run."""
        if self.is_fleet and setting.router is None and setting.without is None:
            return self._as_routed(setting)
        windows = [
            number % len(self._windows)
            for number in range(max(setting.replicas, len(self._windows)))
            if number != setting.without
        ]
        router = setting.router or ("round-robin" if len(windows) == 1 else "least-loaded")
        return self._run(setting, self.requests, windows, router)

    def _as_routed(self, setting: Setting) -> list[RequestTimes | None]:
        """Each request on the replica that had it."""
        results: dict[str, RequestTimes | None] = {}
        for number in range(len(self._windows)):
            own = [request for request, place in self._pairs if place == number]
            if own:
                ran = self._run(setting, own, [number], "round-robin")
                results.update((r.request_id, times) for r, times in zip(own, ran))
        return [results[request.request_id] for request in self.requests]

    def _run(
        self,
        setting: Setting,
        requests: Sequence[RequestReading],
        places: Sequence[int],
        router: RouterName,
    ) -> list[RequestTimes | None]:
        # Of several engines each has its own pauses; one clock cannot follow them all.
        speed = None if setting.steady or len(set(places)) > 1 else self._speeds[places[0]]
        specs = self._specs(requests, speed)
        longest = max(spec.total_tokens for spec in specs)
        replicas, kept = [], []
        for place in places:
            replica, events = self._replica(setting, place, specs, longest)
            replicas.append(replica)
            kept.append(events)
        fleet = Fleet(FixedPool(replicas), make_router(router), OpenLoop(specs), longest)
        results = {result.number: result for result in fleet.run().requests}
        shift = (
            speed.work_at(requests[0].arrival) if speed else requests[0].arrival
        ) - LEAD_SECONDS
        tokens = _token_times(kept)

        def clock(time: float) -> float:
            return speed.time_at(time + shift) if speed else time + shift

        ran: list[RequestTimes | None] = []
        for number, request in enumerate(requests):
            if results.get(number) is None:
                ran.append(None)
                continue
            times = [clock(time) for time in tokens[f"r{number}"]]
            gaps = tuple(after - before for before, after in pairwise(times))
            ran.append(RequestTimes(request.arrival, times[0], times[-1], gaps))
        return ran

    def _replica(
        self, setting: Setting, place: int, specs: Sequence[RequestSpec], longest: int
    ) -> tuple[Replica, KeptEvents]:
        size = self._windows[place].settings.block_size
        enough = sum(-(-spec.total_tokens // size) for spec in specs)
        info = ExecutorInfo(
            model_id="replay",
            vocab_size=2,
            max_model_len=longest,
            num_blocks=max(setting.num_blocks, -(-longest // size)) or enough,
            block_size=size,
        )
        config = SchedulerConfig(
            max_num_batched_tokens=setting.max_num_batched_tokens,
            max_num_seqs=setting.max_num_seqs,
            max_prefill_chunk=setting.max_prefill_chunk,
            policy=cast(PolicyName, setting.policy),
            batching=cast(Batching, setting.batching),
        )
        drafted = self._drafted[place] if setting.drafts else None
        cost: CostModel = WindowCost(self._times[place], drafted.seconds if drafted else 0.0)
        speculation = acceptance = None
        if drafted is not None:
            acceptance = SyntheticAcceptance(drafted.acceptance)
            speculation = Speculation(
                method="synthetic", num_speculative_tokens=drafted.depth, adaptive=False
            )
        executor = SimulatedExecutor(info, cost, VirtualClock(), acceptance=acceptance)
        events = KeptEvents()
        return Replica(executor, config, observers=[events], speculation=speculation), events

    def _specs(
        self, requests: Sequence[RequestReading], speed: MachineSpeed | None
    ) -> list[RequestSpec]:
        """The requests from ``LEAD_SECONDS`` on; before, some fill the cache with what it held."""

        def work(time: float) -> float:
            return speed.work_at(time) if speed else time

        size = self._windows[0].settings.block_size
        begin = work(requests[0].arrival)
        tenants = {request.tenant: None for request in requests}
        numbers = {tenant: number for number, tenant in enumerate(tenants)}
        specs, seen = [], set[int]()
        for number, request in enumerate(requests):
            segments = _segments(request, size)
            from_window = sum(tokens for key, tokens in segments if key in seen)
            if request.cached > from_window and segments:  # from before the window
                lead = len(requests) + number
                specs.append(RequestSpec(lead, 0.0, request.cached + 1, 1, segments))
            seen.update(key for key, _ in segments)
            specs.append(
                RequestSpec(
                    number,
                    LEAD_SECONDS + work(request.arrival) - begin,
                    request.prompt,
                    max(1, request.output),
                    segments,
                    priority=request.priority,
                    tenant=numbers[request.tenant],
                )
            )
        return sorted(specs, key=lambda spec: spec.arrival)

    def _unknown_seqs(self) -> int:
        largest_batch = max(
            event.num_running for window in self._windows for event in window.events
        )
        return max(UNKNOWN_SEQS, largest_batch)


def _segments(request: RequestReading, size: int) -> tuple[tuple[int, int], ...]:
    """What a prompt shares, as (identity, tokens); without names, all that was cached is alike."""
    named = request.prefixes(size)
    if not named:
        return ((CACHED_PREFIX, request.cached),) if request.cached else ()
    segments, before = [], 0
    for tokens, key in named:
        segments.append((key, tokens - before))
        before = tokens
    return tuple(segments)


def _whole(window: StepWindow) -> list[RequestReading]:
    return [r for r in window.requests if r.token_times and r.prompt > 0]


def _that_fit(
    pairs: Sequence[tuple[RequestReading, int]],
) -> list[tuple[RequestReading, int]]:
    """The latest of them, within the bounds of a replay."""
    tokens = 0
    for place in range(len(pairs) - 1, -1, -1):
        tokens += pairs[place][0].output
        if len(pairs) - place > MAX_REPLAYED or tokens > MAX_TOKENS_REPLAYED:
            return list(pairs[place + 1 :])
    return list(pairs)


def _as_recorded(request: RequestReading) -> RequestTimes:
    times = request.token_times
    return RequestTimes(request.arrival, times[0], times[-1], tuple(request.gaps))


def _speed(window: StepWindow, cost: CostModel) -> MachineSpeed:
    from twostroke.doctor.time_spent import step_shape

    steps = []
    for event in window.events:
        shape = step_shape(event)
        if event.scheduled:
            steps.append(
                RecordedStep(
                    shape.decode_requests,
                    shape.decode_context,
                    list(shape.prefill),
                    shape.sampled,
                    event.duration,
                    event.time,
                )
            )
    return MachineSpeed(steps, cost)


def _drafted(window: StepWindow) -> Drafted | None:
    shares = [s for event in window.events for s in event.scheduled if s.num_drafts]
    if not shares:
        return None
    drafts = sum(share.num_drafts for share in shares)
    depth = max(1, round(median(share.num_drafts for share in shares)))
    accepted = sum(share.num_accepted_drafts for share in shares)
    seconds = sum(event.timings.get("draft", 0.0) for event in window.events)
    # A draft is verified only if those before it were accepted: the share per position.
    reached = accepted + sum(s.num_accepted_drafts < s.num_drafts for s in shares)
    return Drafted(depth, accepted / max(1, reached), seconds / drafts)


def _token_times(kept: Sequence[KeptEvents]) -> dict[str, list[float]]:
    """When each request's tokens came, on the replay's clock."""
    times: dict[str, list[float]] = {}
    for events in kept:
        for event in events.events:
            end = event.time + event.duration
            for share in event.scheduled:
                if share.num_new_tokens:
                    times.setdefault(share.request_id, []).extend([end] * share.num_new_tokens)
    return times
