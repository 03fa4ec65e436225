"""A run of decode steps taken in one go leaves everything as the same steps one by one."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

from hypothesis import event, given, settings
from hypothesis import strategies as st

from tests.scheduling.test_scheduler import make_request
from twostroke.core.config import SchedulerConfig
from twostroke.core.request import FinishReason, Request
from twostroke.core.step import StepResult
from twostroke.kv_cache.block_hash import extend_block_hashes
from twostroke.kv_cache.manager import KVCacheManager
from twostroke.scheduling.scheduler import Scheduler
from twostroke.simulator.jumping.steady import Steady

BLOCK = 4
TOKEN = 1
Arrival = tuple[int, list[int], int, int, int]  # step, prompt, max_tokens, n, priority


@dataclass
class Run:
    """One scheduler; ``jumps`` decides whether it takes steady steps in one go."""

    config: SchedulerConfig
    num_blocks: int
    caching: bool
    jumps: bool
    requests: list[Request] = field(default_factory=list)
    free_blocks: list[int] = field(default_factory=list)
    finished: list[tuple[int, str]] = field(default_factory=list)
    num_jumped: int = 0
    num_beside: int = 0  # planned steps that somebody took beside the plan

    def __post_init__(self) -> None:
        self.kv = KVCacheManager(self.num_blocks, BLOCK, enable_prefix_caching=self.caching)
        self.scheduler = Scheduler(self.config, self.kv)
        self.steady = Steady(self.scheduler, TOKEN)
        self.step = 0

    def add(self, request: Request) -> None:
        # As in a simulation, what it will have written is known.
        known = replace(
            request, token_ids=[*request.token_ids, *[TOKEN] * request.max_total_tokens]
        )
        num_blocks = request.max_total_tokens // BLOCK
        request.block_hashes = extend_block_hashes(known, num_blocks, BLOCK, "")[:num_blocks]
        self.scheduler.add(request)
        self.requests.append(request)

    def until(self, step: int) -> None:
        while self.step < step and self.scheduler.has_work():
            steps = self.steady.prepare(step - self.step) if self.jumps else 0
            if steps:
                free = self.kv.pool.num_free
                finished, begun = self.steady.run(steps, float(self.step + steps))
                self.num_jumped += steps
                self.step += steps
                self.free_blocks += [
                    free - taken for taken in accumulate((begun * steps)[: steps - 1])
                ]
                self.free_blocks.append(self.kv.pool.num_free)
                self.finished += [(self.step, request.request_id) for request in finished]
            else:
                self.take_step()
            self.kv.check_integrity()
        self.step = max(self.step, step)

    def take_step(self) -> None:
        self.num_beside += self.scheduler.num_lent > 0
        self.steady.begin()
        plan = self.scheduler.schedule(float(self.step))
        tokens = {
            request_id: [TOKEN] for request_id, item in plan.scheduled.items() if item.samples
        }
        self.step += 1
        finished = [request.request_id for request in self.steady.end(float(self.step))]
        self.scheduler.update(plan, StepResult(token_ids=tokens), float(self.step))
        self.free_blocks.append(self.kv.pool.num_free)
        finished += [i for i, item in plan.scheduled.items() if item.request.finish_reason]
        self.finished += [(self.step, request_id) for request_id in finished]

    def state(self) -> dict[str, Any]:
        """Everything that can matter later, the order of the free list included."""
        self.steady.release()
        return {
            **self.pool(),
            "tables": {
                i: (t.blocks, t.num_indexed, t.num_announced) for i, t in self.kv._tables.items()
            },
            "running": sorted(self.scheduler.running),
            "requests": [
                (r.token_ids, r.num_computed_tokens, r.status, r.finish_time, r.num_preemptions)
                for r in self.requests
            ],
            "step": self.scheduler._step,
        }

    def pool(self) -> dict[str, Any]:
        """What is right even while members are on their own."""
        pool = self.kv.pool
        return {
            "pool": (pool._sharers, self.kv.cached(), pool.free_in_order()),
            "prefix": (self.kv.prefix_queries, self.kv.prefix_hits),
        }


@st.composite
def runs(draw: st.DrawFn) -> tuple[SchedulerConfig, int, bool, list[Arrival], dict[int, int]]:
    config = SchedulerConfig(
        max_num_batched_tokens=draw(st.sampled_from([2, 5, 16, 40])),
        max_num_seqs=draw(st.integers(1, 6)),
        max_prefill_chunk=draw(st.none() | st.integers(1, 12)),
        policy=draw(st.sampled_from(["fcfs", "priority"])),
        batching=draw(st.sampled_from(["continuous"] * 3 + ["static"])),
    )
    random = draw(st.randoms(use_true_random=False))
    apart = draw(st.booleans())  # so that there is no index, or only once somebody was preempted
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
    return (
        config,
        draw(st.sampled_from([11, 12, 14, 20, 40])),
        draw(st.booleans()),
        arrivals,
        aborts,
    )


@settings(max_examples=400, deadline=None)
@given(runs())
def test_jumping_is_stepping(
    case: tuple[SchedulerConfig, int, bool, list[Arrival], dict[int, int]],
) -> None:
    config, num_blocks, caching, arrivals, aborts = case
    both = [Run(config, num_blocks, caching, jumps) for jumps in (False, True)]
    for step in sorted({arrival[0] for arrival in arrivals} | set(aborts.values())):
        for run in both:
            run.until(step)
            if step in aborts.values():
                run.steady.release()
            for number, (at, prompt, max_tokens, n, priority) in enumerate(arrivals):
                leader = None
                for index in range(n if at == step else 0):
                    request = make_request(
                        f"{number}#{index}", prompt, max_tokens, leader=leader, priority=priority
                    )
                    run.add(request)
                    leader = leader or request
                if aborts.get(number) == step:
                    run.scheduler.finish(f"{number}#0", FinishReason.ABORT, float(step))
        looked_at = step in aborts.values() or step % 3 == 0
        assert both[0].state() == both[1].state() if looked_at else both[0].pool() == both[1].pool()
    for run in both:
        run.until(5000)
        assert not run.scheduler.has_work()
    assert both[0].state() == both[1].state()
    assert both[0].free_blocks == both[1].free_blocks
    assert both[0].finished == both[1].finished
    event(f"jumped {both[1].num_jumped > 0}")
    event(f"planned beside members {both[1].num_beside > 0}")
    event(f"indexed {both[0].kv.pool.is_indexed} and {both[1].kv.pool.is_indexed}")


def test_a_run_ends_with_the_first_request_that_does() -> None:
    run = Run(SchedulerConfig(), 40, True, True)
    for name, max_tokens in (("a", 5), ("b", 9)):
        run.add(make_request(name, [3, 4, 5], max_tokens))
    assert run.steady.prepare(100) == 0  # prompts come first
    run.take_step()
    assert run.steady.prepare(100) == 4
    assert run.steady.prepare(3) == 3
    finished, _ = run.steady.run(4, 5.0)
    assert [request.request_id for request in finished] == ["a"]
    assert run.steady.prepare(100) == 4


def test_a_run_ends_before_blocks_run_out() -> None:
    run = Run(SchedulerConfig(), 5, True, True)
    for name in ("a", "b"):
        run.add(make_request(name, [3, 4, 5], 17))
    run.take_step()
    # Three tokens each in one block each; 5 blocks hold 12 and 8.
    assert run.steady.prepare(100) == 5


def test_a_run_ends_when_somebody_writes_the_prefix_that_is_waited_for() -> None:
    """ "a" and "b" write the same; what "a" kept of it goes first, so "m" writes the one block that
    "w" lacks of it.
    """
    both = [Run(SchedulerConfig(), 12, True, jumps) for jumps in (False, True)]
    rows = ((0, "a", 12, 1), (0, "b", 20, 16), (1, "c", 16, 1), (2, "m", 10, 16), (4, "w", 22, 1))
    for run in both:
        for step, name, length, max_tokens in rows:
            run.until(step)
            run.add(make_request(name, [2 if name == "c" else TOKEN] * length, max_tokens))
        run.until(500)
    assert both[0].finished == both[1].finished
    assert [name for _, name in both[0].finished] == ["a", "c", "w", "b", "m"]
    assert both[1].num_jumped


def test_what_a_run_evicts_was_found_before() -> None:
    """ "b" writes what "a" has left, which goes only afterwards: until then it is that which
    counts.
    """
    both = [Run(SchedulerConfig(), 6, True, jumps) for jumps in (False, True)]
    for run in both:
        run.add(make_request("a", [TOKEN] * 12, 1))
        run.until(2)
        run.add(make_request("b", [TOKEN] * 5, 18))
        run.until(100)
    assert both[1].num_jumped > 12
    assert both[0].state() == both[1].state()


def test_those_that_end_together_free_their_blocks_in_order() -> None:
    """Whoever fills its last block first is not the one that came first."""
    runs = [Run(SchedulerConfig(), 40, True, jumps) for jumps in (False, True)]
    for run in runs:
        for name, prompt in (("a", [2, 3, 4, 5, 6]), ("b", [3, 4, 5]), ("c", [4, 5, 6, 7])):
            run.add(make_request(name, prompt, 12))
        run.until(100)
        assert run.finished == [(12, "a"), (12, "b"), (12, "c")]
    assert runs[0].state() == runs[1].state()


def test_a_prompt_is_planned_beside_those_that_decode() -> None:
    run = Run(SchedulerConfig(max_num_batched_tokens=5), 40, True, True)
    run.add(make_request("a", [3, 4, 5], 20))
    run.until(3)
    run.add(make_request("b", [2] * 10, 4))
    assert run.steady.prepare(100) == 0
    plan = run.scheduler.schedule(3.0)
    assert list(plan.scheduled) == ["b"]
    assert plan.num_tokens == 5  # four beside the one that "a" takes
    run.steady.release()
    assert sorted(run.scheduler.running) == ["a", "b"]


def test_what_cannot_be_foreseen_is_stepped_through() -> None:
    """A fair policy's order changes with every token; samples share blocks; an end token may come
    at any time.
    """
    fair = Run(SchedulerConfig(policy="fair"), 40, True, True)
    samples, stopping = (
        Run(SchedulerConfig(), 40, True, True),
        Run(SchedulerConfig(), 40, True, True),
    )
    for run in (fair, samples, stopping):
        run.add(make_request("a", [3, 4, 5], 9))
    samples.add(make_request("b", [3, 4, 5], 9, leader=samples.requests[0]))
    stopping.requests[0].stop_token_ids = frozenset({TOKEN})
    stopping.requests[0].params = replace(stopping.requests[0].params, min_tokens=5)
    for run in (fair, samples, stopping):
        run.take_step()
        assert run.steady.prepare(100) == 0
        assert run.scheduler.num_lent == 0
