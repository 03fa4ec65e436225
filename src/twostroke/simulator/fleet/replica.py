"""One simulated engine: the live one's scheduler and KV manager around an executor that only knows
durations.
"""

from __future__ import annotations

from collections.abc import Set

from twostroke.core.config import SchedulerConfig
from twostroke.core.request import Request
from twostroke.core.step import Reason, StepPlan, StepResult
from twostroke.kv_cache.manager import KVCacheManager
from twostroke.observability.events import SchedulerStats, build_step_event
from twostroke.observability.recorder import Recorder
from twostroke.scheduling.scheduler import Scheduler
from twostroke.simulator.fleet.executor import TOKEN, SimulatedExecutor
from twostroke.simulator.jumping.steady import Steady
from twostroke.simulator.results.step_log import StepLog

# Longest run of steps taken in one go: bounds what is computed in vain when an arrival cuts a run
# short.
MAX_RUN = 4096


class Replica:
    """Scheduler, KV manager, executor and log of one engine.

    ``step`` is ``Engine.step`` less what a simulation has no use for: text, failures, Prometheus
    objects fed token by token. A test runs both on the same workload and compares their step events
    (``docs/decisions/0019-simulator-drives-the-live-scheduler.md``).

    Args:
        executor: Owned by the replica from here on, with its clock.
        jump: Take runs of steady steps in one go.
        recorder: Gets the live engine's event of every step; then nothing is jumped.
    """

    def __init__(
        self,
        executor: SimulatedExecutor,
        config: SchedulerConfig,
        *,
        enable_prefix_caching: bool = True,
        jump: bool = True,
        recorder: Recorder | None = None,
    ) -> None:
        info = executor.info
        self.executor = executor
        self.clock = executor.clock
        self.config = config
        self.kv = KVCacheManager(
            info.num_blocks,
            info.block_size,
            model_id=info.model_id,
            enable_prefix_caching=enable_prefix_caching,
        )
        self.scheduler = Scheduler(config, self.kv)
        self.log = StepLog(info.block_size)
        self._steady = Steady(self.scheduler, TOKEN)
        self._jump = jump and recorder is None and executor.acceptance is None
        self._recorder = recorder
        self._stats = SchedulerStats()
        self._drew: Set[str] = frozenset()  # who got a token in the last step, but for members
        self._last_draw: dict[str, float] = {}  # of those who run but were left out since
        self._finish_times: list[float] = []

    def add(self, request: Request) -> None:
        """Queue a request; if nobody was there, time goes on with its arrival."""
        if not self.scheduler.has_work():
            self.clock.advance_to(request.arrival_time)
        self.scheduler.add(request)

    def has_work(self) -> bool:
        return bool(self.scheduler.requests)

    def num_unfinished(self, now: float) -> int:
        """Requests here at ``now``. A step that is under way then has been taken as a whole: whom
        it ends counts.
        """
        self._finish_times = [time for time in self._finish_times if time > now]
        return len(self.scheduler.requests) + len(self._finish_times)

    def run(self, until: float) -> list[Request]:
        """Take one step, or as many steady ones as begin before ``until``. Returns whom that has
        ended.
        """
        # Asked even where the next step is no ordinary one: who only decodes need not be planned
        # for.
        steps = self._steady.prepare(MAX_RUN) if self._jump else 0
        finished = (
            self._take_run(steps, until) if steps > 1 and self.executor.settled else self.step()
        )
        if finished:
            self._finish_times += [request.finish_time or 0.0 for request in finished]
        return finished

    def step(self) -> list[Request]:
        scheduler, steady, now = self.scheduler, self._steady, self.clock.now
        others = len(steady.request_ids)
        if others:
            steady.begin()
        plan = scheduler.schedule(now)
        result = self.executor.execute(plan, others, steady.context if others else 0)
        end = self.clock.now
        gaps = self._count_gaps(result.token_ids.keys(), now, end)
        finished = steady.end(end) if others else []
        unfinished = len(scheduler.requests)
        scheduler.update(plan, result, end)
        if len(scheduler.requests) < unfinished:
            finished += [
                item.request
                for item in plan.scheduled.values()
                if item.request.finish_reason is not None
            ]
        self._observe(plan, result, end, finished, others + len(result.token_ids), gaps)
        return finished

    def _take_run(self, most: int, until: float) -> list[Request]:
        steady, requests = self._steady, self.scheduler.requests
        count, context = len(steady.request_ids), steady.context
        kept_out = self._kept_out(count) if len(requests) > count else ""
        # The clock adds one duration after the other; so does this, to the last digit.
        ahead = self.executor.decode_run(count, context, most, until)
        times = ahead.times
        gaps = self._count_gaps(frozenset(), times[0], times[1])
        finished, taken = steady.run(len(times) - 1, times[-1])
        self.clock.advance_to(times[-1])
        left = count - len(finished)
        self.log.add_run(
            times,
            count,
            context,
            first_gaps=gaps,
            left=left,
            waiting=len(requests) - left,
            taken=taken,
            free_blocks=self.kv.pool.num_free,
            bindings=ahead.bindings,
            kept_out=kept_out,
        )
        return finished

    def _kept_out(self, running: int) -> str:
        """Why nobody who waits enters while steps only decode: what the scheduler would say in each
        of them.
        """
        config = self.config
        if (
            self.scheduler.policy.peek() is None
        ):  # the rest of a static batch; one that was preempted may enter
            return Reason.BATCH_RUNNING.value
        if running >= config.max_num_batched_tokens:
            return Reason.TOKEN_BUDGET.value
        return (
            Reason.MAX_NUM_SEQS.value
            if running >= config.max_num_seqs
            else Reason.NO_FREE_BLOCK.value
        )

    def _observe(
        self,
        plan: StepPlan,
        result: StepResult,
        now: float,
        finished: list[Request],
        drew: int,
        gaps: int,
    ) -> None:
        """Write down what happened until ``now``: the step has ended ``finished``, and ``drew``
        have got a token.
        """
        scheduler, executor = self.scheduler, self.executor
        running = len(scheduler.running) + scheduler.num_lent
        waiting = len(scheduler.requests) - running
        self.log.add(
            plan.time,
            now,
            executor.last_shape,
            executor.last_binding,
            new_tokens=drew if executor.acceptance is None else self._num_kept(plan, result),
            gaps=gaps,
            running=running,
            waiting=waiting,
            free_blocks=self.kv.pool.num_free,
            # Where anybody waits, the plan ends with why the first of them does.
            kept_out=plan.decisions[-1].reason.value if waiting else "",
        )
        if self._recorder is not None:
            previous, self._stats = self._stats, scheduler.stats()
            result.timings["schedule"] = (
                0.0  # the live engine's own share; here it is part of the estimate
            )
            event = build_step_event(
                plan,
                result,
                started=plan.time,
                finished=now,
                stats=self._stats,
                previous=previous,
                token_budget=self.config.max_num_batched_tokens,
                finished_requests=[
                    (r.request_id, r.finish_reason) for r in finished if r.finish_reason
                ],
            )
            self._recorder.add(event)

    def _num_kept(self, plan: StepPlan, result: StepResult) -> int:
        """Tokens drawn and kept: drafts past a request's end are not."""
        return sum(
            plan.scheduled[request_id].request.num_tokens
            - plan.scheduled[request_id].start
            - plan.scheduled[request_id].num_tokens
            for request_id in result.token_ids
        )

    def _count_gaps(self, planned: Set[str], start: float, end: float) -> int:
        """How many of those who draw, members and ``planned``, also drew in the step before.

        What lies between two tokens of the others is logged.
        """
        steady, before, drawing = self._steady, self._drew, planned
        self._drew = planned
        staying = len(steady.request_ids) - len(steady.joined)
        if steady.left:
            before = before | steady.left
        if steady.joined:
            drawing = planned | steady.joined if planned else steady.joined
        if before == drawing:
            return staying + len(before)
        left_out = before - drawing
        for request_id in left_out:
            if request_id in self.scheduler.requests:
                self._last_draw[request_id] = start
        same = len(before) - len(left_out)
        if same < len(drawing) and self._last_draw:
            for request_id in sorted(drawing - before):
                if (last := self._last_draw.pop(request_id, None)) is not None:
                    self.log.other_gaps.append(end - last)
        return staying + same
