"""What crosses between a front end and an engine: plain data, which has a wire form (msgspec).

A client's call is a ``GenerationRequest``. The client's side validates it (``intake.py``) and
sends an ``AddRequest``, one of the ``EngineMessage``. What comes back is an ``EngineReply``: the
outputs of a step in a ``StepReport``, with the engine's status, and answers to questions.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec

from twostroke.core.errors import ErrorMessage
from twostroke.core.generation_request import ResolvedRequest
from twostroke.core.output import RequestOutput, sample_id
from twostroke.core.prefix_hit import KVOffer
from twostroke.core.request import Request
from twostroke.core.sampling_params import SamplingParams
from twostroke.engine.adapters.orders import AdapterOrder, KnownAdapter
from twostroke.engine.cache_orders import CacheOrder, CacheReport
from twostroke.kv_cache.prefix_mirror import IndexChanges
from twostroke.observability.events import RefusedRequest, SchedulerStats, StepEvent
from twostroke.observability.kv_events import KVEventBatch
from twostroke.observability.snapshot import EngineSnapshot
from twostroke.observability.targets.watch import TargetReport
from twostroke.sampling.random import derive_seed
from twostroke.scheduling.admission.load_meter import Left
from twostroke.scheduling.admission.prediction import EngineLoad


class SampleSoFar(msgspec.Struct, frozen=True):
    """A sample that another engine has begun.

    Attributes:
        index: Which of the call's samples.
        token_ids: What its client has got.
        num_scored_tokens: Prompt tokens whose log-probabilities its client has got.
        first_token_time: When it got the first of them, in seconds on the engine's clock.
    """

    index: int
    token_ids: list[int]
    num_scored_tokens: int = 0
    first_token_time: float | None = None


class AddRequest(msgspec.Struct, frozen=True, tag=True):
    """A validated call, ready to be queued.

    Attributes:
        request: Its first sample.
        other_params: For the other samples: only the first reports the prompt's log-probabilities.
        arrival_time: When it is sent, in seconds on the engine's clock.
        resumed: Where another engine has begun the call: its samples that have not ended, which go
            on where they were. A draw depends on seed and position alone, so they end as they would
            have ended there.
        offer: Blocks of its prompt that another engine has.
    """

    request: ResolvedRequest
    other_params: SamplingParams
    arrival_time: float
    resumed: list[SampleSoFar] | None = None
    offer: KVOffer | None = None

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def num_samples(self) -> int:
        """How many are to be queued."""
        return self.request.params.n if self.resumed is None else len(self.resumed)


class AwaitRequest(msgspec.Struct, frozen=True, tag=True):
    """Another engine computes the prompt of a call that is to come here: fetch what is there of it.

    ``request`` is left out where it was told before. An ``AbortRequest`` says that it comes not.
    """

    request_id: str
    offer: KVOffer
    request: ResolvedRequest | None = None


class AbortRequest(msgspec.Struct, frozen=True, tag=True):
    """End all samples of a call. ``error`` says why, where it is not the client who wants it."""

    request_id: str
    error: ErrorMessage | None = None


class ForgetRequest(msgspec.Struct, frozen=True, tag=True):
    """End all samples of a call whose outputs no longer reach a reader."""

    request_id: str


class NoteRefusal(msgspec.Struct, frozen=True, tag=True):
    """Tell of a call that the client has refused, with the next step."""

    refused: RefusedRequest


class ManageCache(msgspec.Struct, frozen=True, tag=True):
    """Carry out an order on the prefix cache; the answer bears the number."""

    number: int
    order: CacheOrder


class ManageAdapters(msgspec.Struct, frozen=True, tag=True):
    """Load an adapter or unload one; the answer bears the number."""

    number: int
    order: AdapterOrder


class TakeSnapshot(msgspec.Struct, frozen=True, tag=True):
    """Say what runs and waits. The answer carries the same ``number``."""

    number: int
    with_blocks: bool = False


class TakeRecords(msgspec.Struct, frozen=True, tag=True):
    """Say how metrics and targets stand. The answer carries the same ``number``."""

    number: int


class Close(msgspec.Struct, frozen=True, tag=True):
    """End what runs, and the engine."""


class Drain(msgspec.Struct, frozen=True):
    """Finish what runs, and end. Comes from the engine's own process, never over a connection."""


EngineMessage = (
    AddRequest
    | AwaitRequest
    | AbortRequest
    | ForgetRequest
    | NoteRefusal
    | ManageCache
    | ManageAdapters
    | TakeSnapshot
    | TakeRecords
    | Close
)


# ---- what comes back -----------------------------------------------------------------------------


class EngineStatus(msgspec.Struct, frozen=True):
    """The engine at one moment.

    Attributes:
        stats: The scheduler's state after the latest step, arrival or abort.
        error: Why the engine takes no more requests, if that is so.
        busy_since: The engine's clock when it said so last that there is something to do; ``None``
            where there is nothing.
        draining: It finishes what it has, and then ends.
    """

    stats: SchedulerStats = SchedulerStats()
    error: ErrorMessage | None = None
    busy_since: float | None = None
    draining: bool = False


class LoadReport(msgspec.Struct, frozen=True):
    """What early refusal needs to know (``--admission predicted``).

    Attributes:
        left: Samples that have stopped waiting since the last report.
    """

    load: EngineLoad
    left: list[Left]


class EngineRecords(msgspec.Struct, frozen=True):
    """What the engine has counted of itself, at one moment.

    Attributes:
        metrics: Prometheus exposition text of ``content_type``. The engine leaves gauges of the
            load out: its client has the statistics of every report.
        targets: Those for every key once for each key that has sent a request.
    """

    metrics: bytes
    content_type: str
    targets: list[TargetReport] = []


class StepReport(msgspec.Struct, frozen=True, tag=True):
    """Sent before each step and after it, and after what has been done between two.

    Attributes:
        num_left: By tenant, samples that have left the queue since the engine started; tenants
            without a change are left out.
        cached: What the prefix cache has got and lost since the last report; the first one has all
            that it holds.
        events: Events of the steps since the last report; so are ``kv_events``, if published.
        records: Now and then, for those who ask while a step lasts or after the end.
        num_messages: How many messages the engine has taken in since it started.
    """

    status: EngineStatus
    outputs: list[RequestOutput] = []
    num_left: dict[str, int] = {}
    load: LoadReport | None = None
    cached: IndexChanges | None = None
    events: list[StepEvent] = []
    kv_events: list[KVEventBatch] = []
    records: EngineRecords | None = None
    num_messages: int = 0


class Forgotten(msgspec.Struct, frozen=True, tag=True):
    """A ``ForgetRequest`` was carried out: no more outputs come of it."""

    request_id: str


class CacheAnswer(msgspec.Struct, frozen=True, tag=True):
    """Answers ``ManageCache`` with the report, or with why there is none."""

    number: int
    value: CacheReport | None = None
    error: ErrorMessage | None = None


class AdaptersAnswer(msgspec.Struct, frozen=True, tag=True):
    """Answers ``ManageAdapters`` with the adapter, or with why it was not done."""

    number: int
    value: KnownAdapter | None = None
    error: ErrorMessage | None = None


class SnapshotAnswer(msgspec.Struct, frozen=True, tag=True):
    """Answers ``TakeSnapshot`` with the snapshot, or with why there is none."""

    number: int
    value: EngineSnapshot | None = None
    error: ErrorMessage | None = None


class RecordsAnswer(msgspec.Struct, frozen=True, tag=True):
    """Answers ``TakeRecords`` with the records, or with why there are none."""

    number: int
    value: EngineRecords | None = None
    error: ErrorMessage | None = None


class EngineEnded(msgspec.Struct, frozen=True, tag=True):
    """Nothing more comes of what was sent before."""

    error: ErrorMessage


EngineReply = (
    StepReport
    | Forgotten
    | CacheAnswer
    | AdaptersAnswer
    | SnapshotAnswer
    | RecordsAnswer
    | EngineEnded
)


def make_requests(message: AddRequest) -> list[Request]:
    """One request per sample. The first leads: the others share its prompt's blocks."""
    samples = message.resumed
    if samples is None:
        samples = [SampleSoFar(index, []) for index in range(message.request.params.n)]
    requests: list[Request] = []
    for sample in samples:
        leader = requests[0] if requests else None
        request = Request(
            _spec_of(message, sample.index), arrival_time=message.arrival_time, leader=leader
        )
        request.token_ids += sample.token_ids
        request.num_scored_tokens = sample.num_scored_tokens
        request.first_token_time = sample.first_token_time
        request.num_preemptions = int(bool(sample.token_ids))
        request.offer = message.offer
        requests.append(request)
    return requests


def _spec_of(message: AddRequest, index: int) -> ResolvedRequest:
    """What one sample of a call asks for."""
    call = message.request
    if call.params.n == 1:
        return call
    return replace(
        call,
        request_id=sample_id(call.request_id, index, call.params.n),
        index=index,
        params=message.other_params if index else call.params,
        seed=derive_seed(call.seed, index) if index else call.seed,
    )
