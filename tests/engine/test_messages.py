"""Protects: what crosses between a front end and an engine is plain data, whole on both sides."""

from __future__ import annotations

import queue
from collections import Counter
from dataclasses import replace
from typing import Any, get_args, get_type_hints

import pytest

from tests import wire
from tests.engine.calls import TOKENIZER, call, num_cached
from tests.fakes import FakeExecutor
from tests.observability.test_recorder import event
from twostroke.core.config import EngineConfig, ObservabilityConfig, SchedulerConfig
from twostroke.core.errors import ErrorMessage, InvalidRequestError, ShuttingDownError
from twostroke.core.generation_request import GenerationRequest
from twostroke.core.kv_tier_config import KVTierConfig
from twostroke.core.logprobs import PositionLogprobs, TokenLogprob
from twostroke.core.output import RequestOutput
from twostroke.core.prefix_hit import KVOffer
from twostroke.core.request import FinishReason
from twostroke.core.speculation_config import SpeculationConfig
from twostroke.engine.adapters.orders import KnownAdapter, LoadAdapter, UnloadAdapter
from twostroke.engine.cache_orders import (
    CacheReport,
    ClearCache,
    PinPrefix,
    ShowCache,
    TierReport,
)
from twostroke.engine.clients.base import EngineClient
from twostroke.engine.clients.thread import AsyncEngine, ThreadLink
from twostroke.engine.intake import Intake
from twostroke.engine.llm_engine import LLMEngine
from twostroke.engine.message_loop import MessageLoop
from twostroke.engine.messages import (
    AbortRequest,
    AdaptersAnswer,
    AddRequest,
    AwaitRequest,
    CacheAnswer,
    Close,
    Drain,
    EngineEnded,
    EngineMessage,
    EngineRecords,
    EngineReply,
    EngineStatus,
    ForgetRequest,
    Forgotten,
    LoadReport,
    ManageAdapters,
    ManageCache,
    NoteRefusal,
    RecordsAnswer,
    SnapshotAnswer,
    StepReport,
    TakeRecords,
    TakeSnapshot,
    make_requests,
)
from twostroke.kv_cache.prefix_mirror import IndexChanges
from twostroke.kv_cache.prefix_survey import CachedPrefix
from twostroke.observability.events import RefusedRequest, SchedulerStats, TierStats
from twostroke.observability.kv_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    KVEventBatch,
)
from twostroke.observability.snapshot import (
    BlockState,
    EngineSnapshot,
    PrefixChain,
    RequestSnapshot,
)
from twostroke.observability.targets.watch import TargetReport
from twostroke.scheduling.admission.load_meter import Left
from twostroke.scheduling.admission.prediction import EngineLoad
from twostroke.timing.step_times import Prices


def test_a_client_in_another_process_needs_only_bytes() -> None:
    """Validated from what the engine says of itself, sent as bytes, run, and read as bytes."""
    engine = LLMEngine(FakeExecutor())
    info = wire.decode(wire.encode(engine.info), type(engine.info))
    sent = wire.encode(Intake(info, None, seed=7).prepare(call("a", n=2, max_tokens=5), 0.0))
    engine.add(wire.decode(sent, AddRequest))
    outputs: list[RequestOutput] = []
    while engine.has_work():
        outputs += [wire.decode(wire.encode(output), RequestOutput) for output in engine.step()]
    same = LLMEngine(FakeExecutor())
    same.intake = Intake(same.info, None, seed=7)
    same.submit(call("a", n=2, max_tokens=5))
    expected: list[RequestOutput] = []
    while same.has_work():
        expected += same.step()
    assert outputs == expected
    assert sum(len(output.token_ids) for output in outputs) == 10


ERROR = ErrorMessage.of(ShuttingDownError("later", hint="elsewhere"))
REFUSED = RefusedRequest(
    request_id="a", tenant="t", predicted_ttft=2.0, ttft_target=1.0, factor=1.5, ahead=3
)
OUTPUT = RequestOutput("a", 0, [7], 3, 2, "text", finish_reason=FinishReason.STOP)
LOAD = EngineLoad(Prices(0.5), running=Counter(t=2), uncached={"t": 0.25})
TIERS = TierStats(
    blocks={"cpu": 1}, block_bytes=8, block_size=4, saved_blocks={}, loaded_blocks={"cpu": 2}
)
REPORT = CacheReport(
    block_size=4,
    tiers=[TierReport(name="memory", blocks=1, max_blocks=9, bytes=64)],
    prefixes=[CachedPrefix(id="ab", tokens=8, hits=1, tiers=["memory"], tenants=["t"])],
)
SNAPSHOT = EngineSnapshot(
    time=1.0,
    unix_time=2.0,
    running=[
        RequestSnapshot(
            request_id="a",
            status="running",
            num_prompt_tokens=3,
            max_total_tokens=9,
            arrival_time=0.5,
            labels={"user": "u"},
        )
    ],
    waiting=[],
    ended=[],
    blocks=BlockState(
        num_blocks=2,
        block_size=4,
        tables={"a": [1, -1]},
        cached={b"key": 1},
        free=[0],
        chains=[PrefixChain(request_id="a", tenant="t", keys=[b"key"], num_found=1)],
    ),
)
EVENT = event(3)
TARGET = TargetReport(
    target="ttft=p95:1",
    name="ttft_p95",
    metric="ttft",
    percentile=95.0,
    limit=1.0,
    unit="s",
    key="",
    verdict="met",
    total_observations=1.0,
    total_misses=0.0,
    windows=[],
)
BATCH = KVEventBatch(seq=0, ts=1.0, events=[BlockRemoved(block_hashes=["ab"], medium="CPU")])
RECORDS = EngineRecords(b"metric 1", "text/plain", [TARGET])
ADD = Intake(FakeExecutor().info, TOKENIZER, seed=1).prepare(
    call("a", bad_words=["no"], detokenize=True, logit_bias={3: 1.0}, stop=["x"]), 2.5
)
MESSAGES: list[Any] = [
    ADD,
    AwaitRequest("a", KVOffer("peer0", 32), ADD.request),
    AwaitRequest("a", KVOffer("10.0.0.1:8101", 64)),
    AbortRequest("a", ERROR),
    AbortRequest("b"),
    ForgetRequest("c"),
    NoteRefusal(REFUSED),
    ManageCache(1, ShowCache("t")),
    ManageCache(2, PinPrefix([1, 2], "salt", 9.0, "t")),
    ManageCache(3, ClearCache()),
    ManageAdapters(6, LoadAdapter("sql", "adapters/sql")),
    ManageAdapters(7, UnloadAdapter("sql")),
    TakeSnapshot(4, with_blocks=True),
    TakeRecords(5),
    Close(),
]
REPLIES: list[Any] = [
    StepReport(EngineStatus()),
    StepReport(
        EngineStatus(SchedulerStats(num_running=1, tiers=TIERS), ERROR, 4.5),
        [OUTPUT],
        {"t": 3},
        LoadReport(LOAD, [Left("a", 0.5, ran=True)]),
        IndexChanges([b"x"], [b"y"], cleared=True),
        [EVENT],
        [BATCH],
        RECORDS,
    ),
    Forgotten("c"),
    CacheAnswer(1, REPORT),
    CacheAnswer(2, error=ERROR),
    AdaptersAnswer(6, KnownAdapter("sql", "adapters/sql", "ab", 8, 64, 1)),
    AdaptersAnswer(7, error=ERROR),
    SnapshotAnswer(4, SNAPSHOT),
    SnapshotAnswer(5, error=ERROR),
    RecordsAnswer(6, RECORDS),
    RecordsAnswer(7, error=ERROR),
    EngineEnded(ERROR),
]


@pytest.mark.parametrize(
    ("kind", "messages"), [(EngineMessage, MESSAGES), (EngineReply, REPLIES)], ids=["in", "out"]
)
def test_messages_are_told_apart_on_the_other_side(kind: Any, messages: list[Any]) -> None:
    assert {type(message) for message in messages} == set(get_args(kind)), "one of each"
    for message in messages:
        received = wire.decode(wire.encode(message), kind)
        assert received == message and type(received) is type(message)


def test_what_a_client_shows_of_its_engine_are_values() -> None:
    """No tokenizer, compiler or cache: each property has a wire form."""
    speculation = SpeculationConfig(speculation="ngram")
    scheduler = SchedulerConfig(policy="fcfs").for_device(gpu=False)
    config = EngineConfig(scheduler=scheduler, speculation=speculation)
    engine = AsyncEngine(LLMEngine(FakeExecutor(), config=config))
    try:
        shown = {n: p for n, p in vars(EngineClient).items() if isinstance(p, property)}
        values = {"info", "status", "scheduler_config", "speculation", "watched_targets"}
        assert values | {"adapters"} == set(shown)
        for name, each in shown.items():
            sent = wire.encode(getattr(engine, name))
            assert wire.encode(wire.decode(sent, get_type_hints(each.fget)["return"])) == sent
    finally:
        engine.close()


class ByteInbox(queue.SimpleQueue[EngineMessage | Drain]):
    """What is put in arrives as it would in another process."""

    def put(
        self, item: EngineMessage | Drain, block: bool = True, timeout: float | None = None
    ) -> None:
        kind: Any = EngineMessage
        super().put(wire.decode(wire.encode(item), kind))


class ByteEngine(AsyncEngine):
    """All that crosses between the threads is bytes in between."""

    def __init__(self, engine: LLMEngine) -> None:
        super().__init__(engine)
        link = self._link
        assert isinstance(link, ThreadLink)
        former, link._inbox = link._inbox, ByteInbox()
        link._messages._inbox = link._inbox
        former.put(ForgetRequest("nothing"))  # for which the thread waits there

    def keep(self, reply: EngineReply) -> None:
        kind: Any = EngineReply
        super().keep(wire.decode(wire.encode(reply), kind))

    def carry_out(self, reply: EngineReply) -> None:
        kind: Any = EngineReply
        super().carry_out(wire.decode(wire.encode(reply), kind))


async def test_a_thread_is_spoken_to_as_another_process_would_be() -> None:
    """Calls, orders, records and a failure, all by bytes; and refusals by copied values."""
    scheduler = SchedulerConfig(max_num_seqs=2, admission="predicted")
    targets = ObservabilityConfig(target=("ttft=p95:10",))
    config = EngineConfig(
        scheduler=scheduler, observability=targets, tiers=KVTierConfig(kv_events=True)
    )
    engine = ByteEngine(LLMEngine(FakeExecutor(), config=config))
    try:
        prompt = replace(call("a", n=2, max_tokens=5), prompt_token_ids=list(range(1, 20)))
        outputs = [output async for output in engine.submit(prompt)]
        assert sum(len(output.token_ids) for output in outputs) == 10
        assert (await engine.snapshot(with_blocks=True)).ended
        report = await engine.manage_cache(ShowCache())
        assert report.prefixes and engine.status.stats.cached_blocks
        assert num_cached(engine, replace(prompt, request_id="b")) > 0
        records = await engine.records()
        assert b"vllm:generation_tokens_total" in records.metrics
        assert [report.name for report in records.targets] == ["ttft_p95"]
        assert engine.watched_targets == ["ttft=p95:10"]
        assert sum(s.num_new_tokens for e in engine.events() for s in e.scheduled) == 10
        assert isinstance(engine.kv_events()[0].events[0], BlockStored)
        await engine.manage_cache(ClearCache())
        assert isinstance(engine.kv_events()[-1].events[-1], AllBlocksCleared)
        with pytest.raises(InvalidRequestError, match="too long"):
            await engine.manage_cache(PinPrefix([1] * 4000, "", 1.0))
    finally:
        engine.close()
    assert engine.status.error is not None


def test_a_call_and_an_output_cross_a_wire_unchanged() -> None:
    generation = call("a", temperature=0.5, seed=-3, allowed_token_ids=[5, 4])
    assert wire.decode(wire.encode(generation), GenerationRequest) == generation
    position = PositionLogprobs(TokenLogprob(1, -0.5, 2), [TokenLogprob(3, -0.25, 1)])
    output = RequestOutput(
        "a", 1, [7], 3, 2, "text", [position], [position], FinishReason.STOP, "x", None, 3
    )
    assert wire.decode(wire.encode(output), RequestOutput) == output


def test_the_first_sample_leads_and_each_has_a_seed_of_its_own() -> None:
    message = Intake(FakeExecutor().info, None, seed=1).prepare(call("a", n=3), 0.0)
    requests = make_requests(message)
    assert [request.request_id for request in requests] == ["a#0", "a#1", "a#2"]
    assert [request.leader for request in requests] == [None, requests[0], requests[0]]
    assert len({request.spec.seed for request in requests}) == 3


def test_an_engine_is_busy_from_a_requests_first_step_to_its_last_and_between_them() -> None:
    """A process that stops, at any moment of its work, is seen to hang by its reports."""
    engine, replies = LLMEngine(FakeExecutor()), list[EngineReply]()
    inbox: queue.SimpleQueue[EngineMessage | Drain] = queue.SimpleQueue()
    engine.submit(call("a", max_tokens=6))
    for message in (ForgetRequest("b"), ManageCache(1, ClearCache()), Drain()):
        inbox.put(message)
    MessageLoop(engine, inbox, replies.append).serve()
    reports = [reply for reply in replies if isinstance(reply, StepReport)]
    assert sum(bool(report.outputs) for report in reports) == 6
    *steps, last = [report.status.busy_since for report in reports]
    assert all(since is not None for since in steps)
    assert last is None, "there is nothing left to do"
