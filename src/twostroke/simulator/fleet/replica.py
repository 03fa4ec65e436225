"""One simulated engine: the live loop around an executor that only knows durations."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from twostroke.core.config import SchedulerConfig
from twostroke.core.output import RequestOutput
from twostroke.core.request import Request
from twostroke.engine.engine import Engine
from twostroke.kv_cache.manager import KVCacheManager
from twostroke.observability.observer import ObservedRun, ObservedStep, Observer
from twostroke.scheduling.policies.choose import choose_policy
from twostroke.scheduling.scheduler import Scheduler
from twostroke.scheduling.stats import read_stats
from twostroke.simulator.fleet.executor import TOKEN, SimulatedExecutor
from twostroke.simulator.fleet.step_log import StepLog
from twostroke.simulator.jumping.decode_run import DecodeRun, find_decode_run


class Replica:
    """The live engine's loop, scheduler and KV manager, and a driver that jumps.

    Args:
        executor: Owned by the replica from here on, with its clock.
        jump: Take runs of decode steps in one go.
        observers: More of them, behind the log that reports are made of.
    """

    def __init__(
        self,
        executor: SimulatedExecutor,
        config: SchedulerConfig,
        *,
        enable_prefix_caching: bool = True,
        jump: bool = True,
        observers: Sequence[Observer] = (),
    ) -> None:
        info = executor.info
        self.executor = executor
        self.clock = executor.clock
        self.kv = KVCacheManager(
            info.num_blocks,
            info.block_size,
            model_id=info.model_id,
            enable_prefix_caching=enable_prefix_caching,
        )
        self.scheduler = Scheduler(config, self.kv, choose_policy(config))
        self.log = StepLog(executor, self.scheduler)
        self._ended = EndedRequests()
        watching: list[Observer] = [self.log, self._ended, *observers]
        self.engine = Engine(self.scheduler, executor, watching, clock=self.clock)
        self._jump = jump and executor.acceptance is None
        self._num_added = 0
        self._finish_times: list[float] = []

    def add(self, request: Request) -> None:
        """Queue a request; if the engine was idle, time goes on with the request's arrival."""
        if not self.engine.has_work():
            self.clock.advance_to(request.arrival_time)
        request.seed = self._num_added
        self._num_added += 1
        self.engine.add([request])

    def has_work(self) -> bool:
        return self.engine.has_work()

    def num_unfinished(self, now: float) -> int:
        """Requests here at ``now``.

        A step that is under way at ``now`` has been taken as a whole: what it ends still counts.
        """
        self._finish_times = [time for time in self._finish_times if time > now]
        return len(self.scheduler.requests) + len(self._finish_times)

    def run(self, until: float) -> list[Request]:
        """Take one step, or a run of those that begin before ``until``. Returns what has ended."""
        run = find_decode_run(self.scheduler, TOKEN) if self._may_jump() else None
        if run is None:
            self.engine.step()
        else:
            self._take_run(run, until)
        ended = self._ended.take()
        self._finish_times += [request.finish_time or 0.0 for request in ended]
        return ended

    def _may_jump(self) -> bool:
        return self._jump and self.executor.settled

    def _take_run(self, run: DecodeRun, until: float) -> None:
        scheduler = self.scheduler
        planned = self.executor.decode_run(run.num_requests, run.context, run.max_steps, until)
        num_waiting = len(scheduler.requests) - run.num_requests
        end = planned.times[-1]
        advance = scheduler.advance(len(planned.durations), TOKEN, end)
        self.clock.advance_to(end)
        self.engine.observe_run(
            ObservedRun(
                first_step=advance.first_step,
                times=planned.times,
                durations=planned.durations,
                requests=advance.requests,
                decisions=run.decisions,
                num_waiting=num_waiting,
                blocks=advance.blocks,
                read_stats=partial(read_stats, scheduler),
                block_size=self.kv.block_size,
                token_budget=scheduler.config.max_num_batched_tokens,
            )
        )


class EndedRequests:
    """An observer that keeps the requests that have ended until they are taken."""

    def __init__(self) -> None:
        self._requests: list[Request] = []

    def take(self) -> list[Request]:
        ended, self._requests = self._requests, []
        return ended

    def on_add(self, requests: Sequence[Request]) -> None:
        """Nothing has ended."""

    def on_step(self, step: ObservedStep) -> None:
        self._requests += step.ended

    def on_run(self, run: ObservedRun) -> None:
        self._requests += run.ended

    def on_end(self, requests: Sequence[Request], outputs: Sequence[RequestOutput]) -> None:
        self._requests += requests

    def close(self) -> None:
        """Nothing to free."""
