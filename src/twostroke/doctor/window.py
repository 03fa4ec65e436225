"""A part of a server's time as its step events tell it: requests, steps, calls, settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from twostroke.core.errors import ConfigError
from twostroke.observability.events import StartedRequest, StepEvent
from twostroke.observability.frames.prefix_keys import prefix_marks
from twostroke.observability.tracing.stations import CallStations

USUAL_BLOCK = 16  # tokens, where no step tells
HINT = "give a file that was written with --record while requests ran, or a longer --window"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedSettings:
    """How a recorded engine was set, as far as anything tells; ``None``: nothing does.

    Attributes:
        num_blocks: Blocks of its KV cache.
        block_size: Tokens of one.
        has_drafts: Whether it guesses tokens ahead.
    """

    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_prefill_chunk: int | None = None
    policy: str = "fcfs"
    batching: str = "continuous"
    num_blocks: int = 0
    block_size: int = USUAL_BLOCK
    has_drafts: bool = False


@dataclass(slots=True)
class RequestReading:
    """One request; times in seconds on the engine's clock, ``None`` where it has not happened.

    Attributes:
        cached: Prompt tokens that the prefix cache held.
        keys: What its prompt begins with, by ``prefix_marks``.
        token_times: When each of its tokens came.
        lost: Times at which it was preempted, and at which it was as far as before again.
    """

    request_id: str
    arrival: float
    prompt: int
    cached: int = 0
    tenant: str = ""
    priority: int = 0
    keys: list[int] = field(default_factory=list)
    scheduled: float = 0.0
    first_token: float | None = None
    finish: float | None = None
    output: int = 0
    token_times: list[float] = field(default_factory=list)
    lost: list[list[float]] = field(default_factory=list)
    reached: int = 0

    @property
    def ttft(self) -> float | None:
        return None if self.first_token is None else self.first_token - self.arrival

    @property
    def last(self) -> float | None:
        """When it ended, or its latest token came."""
        return self.finish or (self.token_times[-1] if self.token_times else None)

    @property
    def gaps(self) -> list[float]:
        times = self.token_times
        return [after - before for before, after in pairwise(times)]

    def prefixes(self, block_size: int) -> list[tuple[int, int]]:
        """Tokens and key of each named beginning of its prompt."""
        marks = prefix_marks(self.prompt // block_size)
        return [(mark * block_size, key) for mark, key in zip(marks, self.keys)]


@dataclass
class StepWindow:
    """What one engine did.

    Attributes:
        name: What the report calls it.
        requests: Those whose beginning is known, in order of arrival.
        refused: Calls that were refused early, by ``--admission predicted``.
        status_429: Calls that were refused for a limit.
        num_calls: Calls that came, where that is known.
        age: Seconds since its last step; of a live server.
        calls: Their stations over HTTP, by request.
    """

    name: str
    events: list[StepEvent]
    settings: RecordedSettings
    requests: list[RequestReading]
    calls: dict[str, CallStations] = field(default_factory=dict)
    refused: int = 0
    status_429: int = 0
    num_calls: int = 0
    age: float = 0.0

    @property
    def begin(self) -> float:
        return self.events[0].time

    @property
    def end(self) -> float:
        return self.events[-1].time + self.events[-1].duration

    @property
    def seconds(self) -> float:
        return max(1e-9, self.end - self.begin)


def make_window(
    name: str,
    events: Sequence[StepEvent],
    calls: Iterable[CallStations] = (),
    settings: RecordedSettings | None = None,
    seconds: float | None = None,
) -> StepWindow:
    """Read the steps of the last ``seconds``, or all.

    Raises:
        ConfigError: There are none, or no request begins in them.
    """
    if not events:
        raise ConfigError(f"{name} holds no steps", hint=HINT)
    events = _last_engine(events)
    if seconds is not None:
        since = events[-1].time + events[-1].duration - seconds
        events = [event for event in events if event.time >= since] or [events[-1]]
    requests = _read_requests(events)
    if not requests:
        raise ConfigError(f"no request begins in the steps of {name}", hint=HINT)
    window = StepWindow(name, list(events), _settings(events, settings), requests)
    window.refused = sum(len(event.refused) for event in events)
    for call in calls:
        if window.begin <= (call.ended or call.received) <= window.end + 60:
            window.num_calls += 1
            window.status_429 += call.status == 429
            for request_id in call.request_ids:
                window.calls[request_id] = call
    return window


def _last_engine(events: Sequence[StepEvent]) -> Sequence[StepEvent]:
    """The steps of the last of several engines that wrote to one file."""
    for place in range(len(events) - 1, 0, -1):
        if events[place].step <= events[place - 1].step:
            return events[place:]
    return events


def _read_requests(events: Sequence[StepEvent]) -> list[RequestReading]:
    requests: dict[str, RequestReading] = {}
    for event in events:
        end = event.time + event.duration
        for started in event.started:
            requests[started.request_id] = _begun(started, event.time)
        for gone in event.preempted:
            if (request := requests.get(gone.request_id)) is not None:
                request.lost.append([event.time, end])
        for share in event.scheduled:
            request = requests.get(share.request_id)
            if request is None:
                continue
            if share.num_new_tokens:
                request.output += share.num_new_tokens
                request.token_times += [end] * share.num_new_tokens
                if request.first_token is None:
                    request.first_token = end
            if request.lost and share.start < request.reached:  # it is computed again
                request.lost[-1][1] = end
            reached = share.start + share.num_tokens - share.num_drafts
            request.reached = max(request.reached, reached)
        for ended in event.finished:
            if (request := requests.get(ended.request_id)) is not None:
                request.finish = end
    known = [request for request in requests.values() if request.prompt > 0]
    return sorted(known, key=lambda request: (request.arrival, request.request_id))


def _begun(started: StartedRequest, time: float) -> RequestReading:
    return RequestReading(
        started.request_id,
        started.arrival_time,
        started.num_prompt_tokens,
        started.num_cached_tokens,
        started.tenant,
        started.priority,
        started.prefix_keys,
        time,
    )


def _settings(events: Sequence[StepEvent], given: RecordedSettings | None) -> RecordedSettings:
    """What was given, and the rest as the steps show it."""
    given = given or RecordedSettings()
    held_at = max(
        (
            event.num_running
            for event in events
            if any(held.reason.value == "max_num_seqs" for held in event.held_back)
        ),
        default=None,
    )
    static = any(held.reason.value == "batch_running" for e in events for held in e.held_back)
    return RecordedSettings(
        max_num_seqs=given.max_num_seqs or held_at,
        max_num_batched_tokens=given.max_num_batched_tokens
        or max(event.token_budget for event in events)
        or None,
        max_prefill_chunk=given.max_prefill_chunk or _chunk(events),
        policy=given.policy,
        batching="static" if static else given.batching,
        num_blocks=given.num_blocks or max(event.total_blocks for event in events),
        block_size=_block_size(events) or given.block_size,
        has_drafts=given.has_drafts
        or any(share.num_drafts for event in events for share in event.scheduled),
    )


def _chunk(events: Sequence[StepEvent]) -> int | None:
    """The largest chunk of a prompt that was held to its size, if one was."""
    chunks = [
        share.num_tokens
        for event in events
        for held in event.held_back
        if held.reason.value == "prefill_chunk"
        for share in event.scheduled
        if share.request_id == held.request_id
    ]
    return max(chunks, default=None)


def _block_size(events: Sequence[StepEvent]) -> int:
    """Slots of a held block."""
    for event in events:
        held = event.total_blocks - event.free_blocks
        if held > 0 and event.allocated_slots and event.allocated_slots % held == 0:
            return event.allocated_slots // held
    return 0


def settings_of(configuration: Mapping[str, object]) -> RecordedSettings:
    """What a live engine says of itself at ``/v1/inspect``."""

    def number(name: str) -> int | None:
        value = configuration.get(name)
        return value if isinstance(value, int) and value > 0 else None

    return RecordedSettings(
        max_num_seqs=number("max_num_seqs"),
        max_num_batched_tokens=number("max_num_batched_tokens"),
        max_prefill_chunk=number("max_prefill_chunk"),
        policy=str(configuration.get("policy", "fcfs")),
        has_drafts=configuration.get("speculation") is not None,
    )
