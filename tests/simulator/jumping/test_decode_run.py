"""A run of decode steps taken in one go leaves everything as the same steps one by one."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import event, given, settings
from hypothesis import strategies as st

from tests import wire
from tests.fakes import FakeExecutor
from tests.scheduling.harness import make_request
from twostroke.core.config import SchedulerConfig
from twostroke.core.kv_groups import ONE_GROUP, KVGroups
from twostroke.core.request import FinishReason, Request
from twostroke.core.step import StepResult
from twostroke.engine.make_kv import make_kv
from twostroke.kv_cache.block_hash import extend_block_hashes
from twostroke.kv_cache.hit_explainer import HitExplainer
from twostroke.kv_cache.state_slots import StateSlots
from twostroke.kv_cache.tier_directory import TierDirectory
from twostroke.scheduling.policies.choose import choose_policy
from twostroke.scheduling.scheduler import Scheduler
from twostroke.simulator.jumping.decode_run import DecodeRun, find_decode_run
from twostroke.simulator.jumping.jump import jump

BLOCK = 4
TOKEN = 1
Arrival = tuple[int, list[int], int, int, int]  # step, prompt, max_tokens, n, priority


@dataclass
class Simulation:
    """One scheduler; ``jumps`` decides whether it takes decode steps in one go."""

    config: SchedulerConfig
    num_blocks: int
    caching: bool
    jumps: bool
    groups: KVGroups = ONE_GROUP
    num_slots: int = 0
    requests: list[Request] = field(default_factory=list)
    blocks: list[tuple[int, int]] = field(default_factory=list)  # free and cached, after each step
    finished: list[tuple[int, str]] = field(default_factory=list)
    decisions: list[list[Any]] = field(default_factory=list)
    num_jumped: int = 0

    def __post_init__(self) -> None:
        info = FakeExecutor(
            self.num_blocks, BLOCK, groups=self.groups, num_state_slots=self.num_slots
        ).info
        info = replace(info, model_id="", state_spacing=2)
        self.kv = make_kv(info, enable_prefix_caching=self.caching)
        if self.num_slots and self.caching:
            HitExplainer(self.kv, TierDirectory(()))
        self.scheduler = Scheduler(self.config, self.kv, choose_policy(self.config))
        self.step = 0

    def add(self, request: Request) -> None:
        # As in a simulation, the keys of all blocks that it will ever fill are known.
        future = Request(request.spec)
        future.token_ids += [TOKEN] * request.max_total_tokens
        num_blocks = request.max_total_tokens // BLOCK
        count = self.groups.count
        hashes = extend_block_hashes(future, num_blocks, BLOCK, "", count)
        request.block_hashes = hashes[: num_blocks * count]
        self.scheduler.add(request)
        self.requests.append(request)

    def find(self) -> DecodeRun | None:
        return find_decode_run(self.scheduler, TOKEN)

    def until(self, step: int) -> None:
        while self.step < step and self.scheduler.has_work():
            run = self.find() if self.jumps else None
            if run is not None:
                self.take_run(run, min(run.max_steps, step - self.step))
            else:
                self.take_step()
            self.kv.check_integrity()
        self.step = max(self.step, step)

    def take_run(self, run: DecodeRun, steps: int) -> None:
        self.num_jumped += steps
        self.step += steps
        jumped = jump(self.scheduler, steps, TOKEN, float(self.step))
        self.blocks += jumped.blocks[:-1]
        self.decisions += [wire_decisions(run.decisions)] * steps
        self.note_end(jumped.requests)

    def take_step(self) -> None:
        plan = self.scheduler.schedule(float(self.step))
        requests = [self.scheduler.requests[request_id] for request_id in plan.scheduled]
        tokens = {name: [TOKEN] for name, share in plan.scheduled.items() if share.samples}
        self.step += 1
        self.scheduler.update(plan, StepResult(token_ids=tokens), float(self.step))
        self.decisions.append(wire_decisions(plan.decisions))
        self.note_end(requests)

    def note_end(self, requests: list[Request]) -> None:
        self.blocks.append((self.kv.pool.num_free, self.kv.pool.num_cached))
        self.finished += [(self.step, r.request_id) for r in requests if r.finish_reason]

    def state(self) -> dict[str, Any]:
        """Everything that can matter later, the order of the free list included."""
        running, states = self.scheduler.running, self.kv.states
        slots = states.pool if isinstance(states, StateSlots) else None
        return {
            "slots": slots and (slots.free_in_order(), slots.cached()),
            "hits": [r.prefix_hit for r in self.requests],
            "free": self.kv.pool.free_in_order(),
            "cached": self.kv.pool.cached(),
            "prefix": (self.kv.prefix_queries, self.kv.prefix_hits),
            "tables": {name: self.kv.block_ids(request) for name, request in running.items()},
            "requests": [
                (r.token_ids, r.num_computed_tokens, r.status, r.finish_time, r.num_preemptions)
                for r in self.requests
            ],
        }


def wire_decisions(decisions: Any) -> list[Any]:
    return [[d.request_id, d.reason.value, d.by, d.behind] for d in decisions]


@st.composite
def cases(draw: st.DrawFn) -> tuple[SchedulerConfig, int, bool, list[Arrival], dict[int, int]]:
    config = SchedulerConfig(
        max_num_batched_tokens=draw(st.sampled_from([2, 5, 16, 40])),
        max_num_seqs=draw(st.integers(1, 6)),
        max_prefill_chunk=draw(st.none() | st.integers(1, 12)),
        policy=draw(st.sampled_from(["fcfs", "priority"])),
        batching=draw(st.sampled_from(["continuous"] * 3 + ["static"])),
    )
    random = draw(st.randoms(use_true_random=False))
    apart = draw(st.booleans())  # then no two requests begin with the same block
    arrivals: list[Arrival] = [
        (
            random.randrange(40),
            # Mostly the token that is drawn, so that prompts look for what others have generated.
            [10 + number] * apart
            + [random.choice([TOKEN, TOKEN, TOKEN, 2]) for _ in range(random.randrange(1, 20))],
            random.randrange(1, 25),
            random.choice([1, 1, 1, 2]),
            random.randrange(3),
        )
        for number in range(draw(st.integers(1, 10)))
    ]
    aborts = {random.randrange(10): random.randrange(60) for _ in range(draw(st.integers(0, 3)))}
    num_blocks = draw(st.sampled_from([11, 12, 14, 20, 40]))
    return config, num_blocks, draw(st.booleans()), arrivals, aborts


@settings(max_examples=400, deadline=None)
@given(
    cases(),
    st.sampled_from([(None,), (None,), (3,), (9,), (None, 5, 5)]),
    st.sampled_from([0, 0, 1, 3, 6, 12]),
)
def test_jumping_is_stepping(
    case: tuple[SchedulerConfig, int, bool, list[Arrival], dict[int, int]],
    windows: tuple[int | None, ...],
    num_slots: int,
) -> None:
    config, num_blocks, caching, arrivals, aborts = case
    groups = KVGroups(windows, config.max_num_batched_tokens)
    num_blocks += groups.most_blocks(44, BLOCK) - 11
    both = [
        Simulation(config, num_blocks, caching, jumps, groups, num_slots) for jumps in (False, True)
    ]
    for step in sorted({arrival[0] for arrival in arrivals} | set(aborts.values())):
        for simulation in both:
            simulation.until(step)
            for number, (arrival, prompt, max_tokens, n, priority) in enumerate(arrivals):
                leader = None
                for index in range(n if arrival == step else 0):
                    name = f"{number}#{index}"
                    request = make_request(
                        name, prompt, max_tokens, leader=leader, priority=priority
                    )
                    simulation.add(request)
                    leader = leader or request
                if aborts.get(number) == step:
                    simulation.scheduler.finish(f"{number}#0", FinishReason.ABORT, float(step))
        assert both[0].state() == both[1].state()
    for simulation in both:
        simulation.until(5000)
        assert not simulation.scheduler.has_work()
    assert both[0].state() == both[1].state()
    assert both[0].blocks == both[1].blocks
    assert both[0].finished == both[1].finished
    assert both[0].decisions == both[1].decisions
    plans = [simulation.scheduler.schedule(0.0) for simulation in both]
    assert plans[0].step == plans[1].step
    event(f"jumped {both[1].num_jumped > 0}")


def test_the_plan_after_a_run_is_the_plan_after_its_steps() -> None:
    """What the executor is sent afterwards is the same, byte for byte."""
    both = [Simulation(SchedulerConfig(), 40, True, jumps) for jumps in (False, True)]
    for simulation in both:
        for name, length in (("a", 3), ("b", 9)):
            simulation.add(make_request(name, [7] * length, 30))
        simulation.until(12)
    plans = [simulation.scheduler.schedule(12.0) for simulation in both]
    assert both[1].num_jumped == 11
    assert wire.encode(plans[0]) == wire.encode(plans[1])


def test_a_run_ends_with_the_first_request_that_does() -> None:
    simulation = Simulation(SchedulerConfig(), 40, True, True)
    for name, max_tokens in (("a", 5), ("b", 9)):
        simulation.add(make_request(name, [3, 4, 5], max_tokens))
    assert simulation.find() is None  # prompts come first
    simulation.take_step()
    run = simulation.find()
    assert run == DecodeRun(num_requests=2, context=8, max_steps=4, decisions=[])
    simulation.take_run(run, 4)
    assert simulation.finished == [(5, "a")]
    run = simulation.find()
    assert run is not None and run.max_steps == 4


def test_a_run_ends_before_blocks_run_out() -> None:
    simulation = Simulation(SchedulerConfig(), 5, True, True)
    for name in ("a", "b"):
        simulation.add(make_request(name, [3, 4, 5], 17))
    simulation.take_step()
    # Three tokens each in one block each; 5 blocks hold 12 and 8.
    run = simulation.find()
    assert run is not None and run.max_steps == 5


def test_a_run_ends_when_the_prefix_that_is_waited_for_is_written() -> None:
    """ "a" and "b" write the same. What "a" kept of it is evicted first, and so "m" writes the one
    block that "w" lacks of it.
    """
    both = [Simulation(SchedulerConfig(), 12, True, jumps) for jumps in (False, True)]
    rows = ((0, "a", 12, 1), (0, "b", 20, 16), (1, "c", 16, 1), (2, "m", 10, 16), (4, "w", 22, 1))
    for simulation in both:
        for step, name, length, max_tokens in rows:
            simulation.until(step)
            simulation.add(make_request(name, [2 if name == "c" else TOKEN] * length, max_tokens))
        simulation.until(500)
    assert both[0].finished == both[1].finished
    assert [name for _, name in both[0].finished] == ["a", "c", "w", "b", "m"]
    assert both[1].num_jumped


def test_what_a_run_evicts_was_found_before() -> None:
    """ "b" writes what "a" has left, which is evicted only afterwards: until then it counts."""
    both = [Simulation(SchedulerConfig(), 6, True, jumps) for jumps in (False, True)]
    for simulation in both:
        simulation.add(make_request("a", [TOKEN] * 12, 1))
        simulation.until(2)
        simulation.add(make_request("b", [TOKEN] * 5, 18))
        simulation.until(100)
    assert both[1].num_jumped > 12
    assert both[0].state() == both[1].state()


def test_requests_that_end_together_free_their_blocks_in_order() -> None:
    """The one that fills its last block first is not the one that came first."""
    both = [Simulation(SchedulerConfig(), 40, True, jumps) for jumps in (False, True)]
    for simulation in both:
        for name, prompt in (("a", [2, 3, 4, 5, 6]), ("b", [3, 4, 5]), ("c", [4, 5, 6, 7])):
            simulation.add(make_request(name, prompt, 12))
        simulation.until(100)
        assert simulation.finished == [(12, "a"), (12, "b"), (12, "c")]
    assert both[0].state() == both[1].state()


def test_what_cannot_be_foreseen_is_stepped_through() -> None:
    """A fair policy's order changes with every token; samples share blocks; an end token may come
    at any time; a waiting request that has room enters.
    """
    fair = Simulation(SchedulerConfig(policy="fair"), 40, True, True)
    samples, stopping, waiting = (Simulation(SchedulerConfig(), 40, True, True) for _ in range(3))
    for simulation in (fair, samples, stopping, waiting):
        simulation.add(make_request("a", [3, 4, 5], 9))
    samples.add(make_request("b", [3, 4, 5], 9, leader=samples.requests[0]))
    stopping.requests[0].stop_token_ids = frozenset({TOKEN})
    stopping.requests[0].params = replace(stopping.requests[0].params, min_tokens=5)
    for simulation in (fair, samples, stopping, waiting):
        simulation.take_step()
    samples.take_step()
    waiting.add(make_request("b", [3, 4, 5], 9))
    for simulation in (fair, samples, stopping, waiting):
        assert simulation.find() is None
