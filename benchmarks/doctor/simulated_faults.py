"""Faults made on purpose, in the simulator: windows whose cause is known.

The machine is a small one: 11 ms for a step of few tokens, 0.15 ms a token beyond sixty. Its
formula is not the one that the doctor fits: it has an edge.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

import msgspec

from twostroke.core.config import SchedulerConfig
from twostroke.core.sampling_params import SamplingParams
from twostroke.core.speculation_config import Speculation
from twostroke.doctor.imbalance import ALIKE, RouterFacts
from twostroke.doctor.window import RecordedSettings, StepWindow, make_window
from twostroke.engine.executor import ExecutorInfo
from twostroke.observability.tracing.stations import CallStations
from twostroke.simulator.cost.estimate import Estimate
from twostroke.simulator.fleet.clock import VirtualClock
from twostroke.simulator.fleet.executor import SimulatedExecutor
from twostroke.simulator.fleet.kept_events import KeptEvents
from twostroke.simulator.fleet.replica import Replica
from twostroke.simulator.fleet.requests import make_request
from twostroke.simulator.workloads.base import RequestSpec
from twostroke.spec_decode.synthetic import SyntheticAcceptance
from twostroke.timing.step_shape import StepShape

BLOCK = 16
PLENTY = 20_000  # blocks


class SlowedClock(VirtualClock):
    """Steps take longer at some moments, whatever they compute."""

    def __init__(self, slower: Callable[[float], float]) -> None:
        super().__init__()
        self._slower = slower
        self._dice = Random(3)

    def advance(self, seconds: float) -> None:
        super().advance(seconds * self._slower(self.now) * self._dice.uniform(0.97, 1.03))


class SmallMachine:
    """Implements ``cost.estimate.CostModel``."""

    def step(self, shape: StepShape) -> Estimate:
        new = sum(chunk for chunk, _ in shape.prefill)
        pairs = sum(chunk * before + chunk * (chunk + 1) / 2 for chunk, before in shape.prefill)
        tokens = shape.decode_requests + shape.drafts + new
        seconds = 2e-3 + max(9e-3, 1.5e-4 * tokens) + 2e-7 * shape.decode_context + 6e-9 * pairs
        return Estimate(seconds, seconds, seconds, "memory")


@dataclass
class Setup:
    """How a faulty engine is set; the defaults are sound."""

    scheduler: SchedulerConfig = field(default_factory=lambda: SchedulerConfig(max_num_seqs=64))
    blocks: int = PLENTY
    slower: Callable[[float], float] = lambda _: 1.0
    speculation: Speculation | None = None


@dataclass(frozen=True)
class Fault:
    """A fault, and the causes that name it; the first is the plainest.

    Attributes:
        fleet: What a router would say of its replicas.
    """

    name: str
    causes: tuple[str, ...]
    windows: Callable[[], list[StepWindow]]
    fleet: RouterFacts = ALIKE


def run_engine(specs: Sequence[RequestSpec], setup: Setup, name: str = "simulated") -> StepWindow:
    """What one engine does with requests."""
    longest = max(spec.total_tokens for spec in specs)
    info = ExecutorInfo(
        model_id="small",
        vocab_size=2,
        max_model_len=longest,
        num_blocks=max(setup.blocks, -(-longest // BLOCK)),
        block_size=BLOCK,
    )
    clock = SlowedClock(setup.slower)
    acceptance = None
    if setup.speculation is not None:
        acceptance = SyntheticAcceptance(setup.speculation.acceptance_rate)
    kept = KeptEvents()
    replica = Replica(
        SimulatedExecutor(info, SmallMachine(), clock, acceptance=acceptance),
        setup.scheduler,
        jump=False,
        observers=[kept],
        speculation=setup.speculation,
    )
    params = SamplingParams(temperature=0, max_tokens=None, ignore_eos=True, detokenize=False)
    private = 0
    for spec in sorted(specs, key=lambda each: each.arrival):
        while replica.has_work() and clock.now < spec.arrival:
            replica.run(spec.arrival)
        request = make_request(spec, params, BLOCK, private)
        private += len(request.block_hashes)
        replica.add(request)
    while replica.has_work():
        replica.run(float("inf"))
    known = RecordedSettings(
        max_num_seqs=setup.scheduler.max_num_seqs,
        max_num_batched_tokens=setup.scheduler.max_num_batched_tokens,
        max_prefill_chunk=setup.scheduler.max_prefill_chunk,
        policy=setup.scheduler.policy,
        batching=setup.scheduler.batching,
        has_drafts=setup.speculation is not None,
    )
    # The clock is slower than what the executor says of its passes.
    events = [msgspec.structs.replace(event, timings={}) for event in kept.events]
    return make_window(name, events, settings=known)


def poisson(
    count: int,
    rate: float,
    prompt: Callable[[Random], int],
    output: Callable[[Random], int],
    tenant: Callable[[int], int] = lambda _: 0,
    seed: int = 1,
) -> list[RequestSpec]:
    """Requests at random times."""
    dice, time, specs = Random(seed), 0.0, []
    for number in range(count):
        time += dice.expovariate(rate)
        specs.append(RequestSpec(number, time, prompt(dice), output(dice), tenant=tenant(number)))
    return specs


def _fixed(value: int) -> Callable[[Random], int]:
    return lambda dice: max(1, round(value * dice.uniform(0.8, 1.2)))


def _one(specs: Sequence[RequestSpec], setup: Setup) -> Callable[[], list[StepWindow]]:
    return lambda: [run_engine(specs, setup)]


def _always(factor: float) -> Callable[[float], float]:
    return lambda _: factor


def _scheduler(**values: object) -> SchedulerConfig:
    return SchedulerConfig(**{"max_num_seqs": 64, **values})  # type: ignore[arg-type]


def _mixed(long: int, share: float) -> Callable[[Random], int]:
    return lambda dice: long if dice.random() < share else dice.randint(20, 60)


def _thrashing() -> list[StepWindow]:
    """Thirty conversations in turn, each with a long beginning, and a cache for half of them."""
    dice, specs, time = Random(5), [], 0.0
    for number in range(150):
        time += dice.expovariate(3.0)
        group = number % 30
        specs.append(RequestSpec(number, time, 840, 20, ((group, 800),)))
    return [run_engine(specs, Setup(blocks=30 * 800 // BLOCK // 2))]


def _slow_reader() -> list[StepWindow]:
    window = run_engine(poisson(60, 3.0, _fixed(100), _fixed(50)), Setup())
    for number, request in enumerate(window.requests):
        assert request.finish is not None
        late = 4.0 if number % 3 == 0 else 0.01
        window.calls[request.request_id] = CallStations(
            request_ids=[request.request_id],
            received=request.arrival,
            last_byte=request.finish + late,
            ended=request.finish + late,
            status=200,
        )
    return [window]


def _rate_limits() -> list[StepWindow]:
    window = run_engine(poisson(60, 3.0, _fixed(100), _fixed(50)), Setup())
    window.num_calls, window.status_429 = 120, 60
    return [window]


def _hot_key() -> list[StepWindow]:
    """Two hundred requests of one key at once, and some of others after them."""
    hot = [RequestSpec(number, 0.01 * number, 60, 60, tenant=0) for number in range(200)]
    others = [
        RequestSpec(1000 + number, 0.5 + 0.4 * number, 60, 40, tenant=1 + number % 3)
        for number in range(20)
    ]
    return [run_engine([*hot, *others], Setup(_scheduler(max_num_seqs=16)))]


def _slow_replica() -> list[StepWindow]:
    specs = poisson(160, 6.0, _fixed(200), _fixed(60))
    return [
        run_engine(specs[place::2], Setup(slower=_always(factor)), f"replica {place}")
        for place, factor in enumerate((1.0, 3.0))
    ]


def _stopped_replica() -> list[StepWindow]:
    """One of two is stopped for 60 of each 90 ms: its steps are as fast as ever, if they run."""
    specs = poisson(120, 4.0, _fixed(200), _fixed(60))

    def stops(time: float) -> float:
        return 6.5 if time % 0.09 > 0.03 else 1.0

    return [
        run_engine(specs[place::2], Setup(slower=slower), f"replica {place}")
        for place, slower in enumerate((_always(1.0), stops))
    ]


def _crowded_prefixes() -> list[StepWindow]:
    """Fourteen long beginnings in turn, and a cache in which seven requests have room."""
    dice, specs, time = Random(6), [], 0.0
    for number in range(120):
        time += dice.expovariate(6.0)
        group = number % 14
        specs.append(RequestSpec(number, time, 840, 12, ((group, 800),)))
    return [run_engine(specs, Setup(blocks=400))]


def _all_to_one() -> list[StepWindow]:
    """One beginning, which a router sends to the engine that had it first."""
    specs = [
        RequestSpec(spec.number, spec.arrival, 840, 60, ((1, 800),))
        for spec in poisson(120, 8.0, _fixed(1), _fixed(1))
    ]
    return [run_engine(specs, Setup(_scheduler(max_num_seqs=4)), "engine 0")]


def _too_few_for_prompts() -> list[StepWindow]:
    """One engine computes long prompts, one writes a few tokens after each."""
    prompts = poisson(100, 4.5, _fixed(1200), lambda _: 1)
    answers = [RequestSpec(s.number, s.arrival + 1.0, 16, 12) for s in prompts]
    return [
        run_engine(prompts, Setup(), "engine 1"),
        run_engine(answers, Setup(), "engine 0"),
    ]


def _uneven() -> list[StepWindow]:
    """Three replicas, of which one gets eight of ten requests."""
    specs = poisson(200, 9.0, _fixed(300), _fixed(60))
    parts = [specs, [], []]
    parts[1] = [spec for spec in specs if spec.number % 10 == 0]
    parts[2] = [spec for spec in specs if spec.number % 10 == 1]
    parts[0] = [spec for spec in specs if spec.number % 10 > 1]
    return [
        run_engine(part, Setup(_scheduler(max_num_seqs=16)), f"replica {place}")
        for place, part in enumerate(parts)
    ]


def _busy_host() -> list[StepWindow]:
    """A device that has done its part of each step after a third of it."""
    window = run_engine(poisson(80, 3.0, _fixed(100), _fixed(60)), Setup())
    window.events = [
        msgspec.structs.replace(event, timings={"forward": 0.35 * event.duration})
        for event in window.events
    ]
    return [window]


def _stolen(time: float) -> float:
    """Two seconds in six the cores belong to another program."""
    return 4.0 if time % 6.0 > 4.0 else 1.0


_DRAFTS = Speculation(
    method="synthetic", num_speculative_tokens=8, adaptive=False, acceptance_rate=0.03
)
SIMULATED_FAULTS: tuple[Fault, ...] = (
    Fault(
        "budget too small",
        ("token-budget",),
        _one(
            poisson(60, 1.5, _fixed(500), _fixed(40)),
            Setup(_scheduler(max_num_batched_tokens=32, max_num_seqs=16)),
        ),
    ),
    Fault(
        "chunk too large",
        ("long-prompts",),
        _one(
            poisson(120, 4.0, _mixed(3000, 0.15), _fixed(80)),
            Setup(_scheduler(max_num_batched_tokens=8192)),
        ),
    ),
    Fault(
        "chunk too small",
        ("prefill-chunk",),
        _one(poisson(60, 1.0, _fixed(600), _fixed(20)), Setup(_scheduler(max_prefill_chunk=16))),
    ),
    Fault(
        "KV cache too small",
        ("kv-blocks", "preemption"),
        _one(poisson(100, 3.0, _fixed(400), _fixed(80)), Setup(blocks=70)),
    ),
    Fault(
        "answers outgrow the KV cache",
        ("preemption", "kv-blocks"),
        _one(poisson(60, 6.0, _fixed(40), _fixed(400)), Setup(blocks=200)),
    ),
    Fault(
        "noisy neighbour",
        ("long-prompts",),
        _one(
            [
                *poisson(100, 4.0, _fixed(50), _fixed(80)),
                *(RequestSpec(1000 + n, 1.0 + 1.5 * n, 4000, 5, tenant=1) for n in range(16)),
            ],
            Setup(_scheduler(max_num_batched_tokens=8192)),
        ),
    ),
    Fault("thrashing prefixes", ("eviction",), _thrashing),
    Fault("prefixes that crowd the cache", ("eviction",), _crowded_prefixes),
    Fault(
        "speculation on random text",
        ("speculation",),
        _one(poisson(200, 12.0, _fixed(40), _fixed(80)), Setup(speculation=_DRAFTS)),
    ),
    Fault(
        "CPU stolen",
        ("machine",),
        _one(poisson(120, 3.0, _fixed(60), _fixed(60)), Setup(slower=_stolen)),
    ),
    Fault("slow reader", ("slow-client",), _slow_reader),
    Fault("one hot key", ("one-key",), _hot_key),
    Fault("one slow replica", ("slow-replica",), _slow_replica),
    Fault("a replica that stands still at times", ("slow-replica",), _stopped_replica),
    Fault("uneven routing", ("imbalance",), _uneven),
    Fault(
        "one hot prefix",
        ("imbalance",),
        _all_to_one,
        RouterFacts(idle=("engine 1",), routed={"engine 0": {"prefix": 119, "no_prefix": 1}}),
    ),
    Fault(
        "too few engines for prompts",
        ("pool-ratio",),
        _too_few_for_prompts,
        RouterFacts(roles={"engine 0": "decode", "engine 1": "prefill"}),
    ),
    Fault(
        "a replica is down",
        ("replica-down",),
        _one(poisson(80, 2.0, _fixed(30), _fixed(60)), Setup()),
        RouterFacts(idle=("engine 1",), trouble={"engine 1": "it was ended by SIGKILL"}),
    ),
    Fault(
        "too many sequences",
        ("batch-too-large",),
        _one(
            [RequestSpec(n, 0.001 * n, 20, 100 + n % 50) for n in range(256)],
            Setup(_scheduler(max_num_seqs=256)),
        ),
    ),
    Fault(
        "too few sequences",
        ("max-num-seqs",),
        _one(poisson(80, 3.0, _fixed(60), _fixed(60)), Setup(_scheduler(max_num_seqs=2))),
    ),
    Fault(
        "static batching",
        ("static-batching",),
        _one(
            poisson(80, 4.0, _fixed(60), lambda dice: 200 if dice.random() < 0.1 else 10),
            Setup(_scheduler(batching="static")),
        ),
    ),
    Fault(
        "too much load",
        ("compute",),
        _one(poisson(120, 14.0, _fixed(700), _fixed(30)), Setup(_scheduler(max_num_seqs=16))),
    ),
    Fault("limits of a key", ("rate-limits",), _rate_limits),
    Fault("busy host", ("host",), _busy_host),
    Fault(
        "nothing wrong",
        ("bandwidth", "idle"),
        _one(poisson(80, 2.0, _fixed(30), _fixed(60)), Setup()),
    ),
)
