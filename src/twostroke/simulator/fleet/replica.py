"""One simulated engine: the live loop around an executor that only knows durations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from twostroke.core.config import SchedulerConfig
from twostroke.core.kv_tier_config import PreemptionName
from twostroke.core.output import RequestOutput
from twostroke.core.prefix_hit import KVOffer
from twostroke.core.request import Request
from twostroke.core.speculation_config import Speculation
from twostroke.engine.engine import Engine
from twostroke.engine.make_kv import make_kv
from twostroke.engine.refuse_overdue import refuse_overdue
from twostroke.observability.observer import ObservedStep, Observer
from twostroke.scheduling.admission.load_meter import LoadMeter
from twostroke.scheduling.admission.overdue import OverdueCalls
from twostroke.scheduling.admission.predicted import Arrival, PredictedAdmission
from twostroke.scheduling.admission.ttft_targets import TTFTTargets
from twostroke.scheduling.assemble import assemble_scheduler
from twostroke.scheduling.awaited_prompts import room_to_spare
from twostroke.simulator.fleet.executor import TOKEN, SimulatedExecutor
from twostroke.simulator.fleet.peers import PEERS, Offer, Sender
from twostroke.simulator.fleet.step_log import StepLog
from twostroke.simulator.jumping.decode_run import DecodeRun, find_decode_run
from twostroke.simulator.jumping.jump import jump
from twostroke.simulator.jumping.observed_run import ObservedRun, RunObserver


class Replica:
    """The live engine's loop, scheduler and KV manager, and a driver that jumps.

    Args:
        executor: Owned by the replica from here on, with its clock.
        jump: Take runs of decode steps in one go.
        observers: More of them, after the log that reports are made of.
        speculation: How far ahead tokens are guessed; the executor knows how the guesses fare.
        targets: When first tokens are due, for policy ``deadline`` and early refusal.
        preemption: What happens to the blocks of a request that must wait for room.

    Attributes:
        when_counted: Told how many requests have come, and at what times others end.
        notes_parts: Whether it computes prompts for others, which get their parts one by one.
        parts: By request, when a step ended, and its tokens that were computed by then.
    """

    def __init__(
        self,
        executor: SimulatedExecutor,
        config: SchedulerConfig,
        *,
        enable_prefix_caching: bool = True,
        jump: bool = True,
        observers: Sequence[Observer] = (),
        speculation: Speculation | None = None,
        targets: TTFTTargets | None = None,
        preemption: PreemptionName = "recompute",
    ) -> None:
        info = executor.info
        self.executor = executor
        self.clock = executor.clock
        self.kv = make_kv(info, enable_prefix_caching=enable_prefix_caching)
        made = assemble_scheduler(config, self.kv, speculation, preemption, info.tiers)
        self.scheduler = made.scheduler
        self._targets = targets or TTFTTargets((), info.model_id)
        self.log = StepLog(executor, self.scheduler)
        self._ended = EndedQueue()
        watching: list[Observer] = [self.log, self._ended, *observers]
        self._admission: PredictedAdmission | None = None
        self._overdue: OverdueCalls | None = None
        if config.admission == "predicted":
            meter = LoadMeter(self.scheduler, made.times)
            self._admission = PredictedAdmission(config, self._targets, meter)
            factor = config.admission_factor
            self._overdue = OverdueCalls(made.times, meter, factor)
            watching += [meter, self._overdue]
        self.engine = Engine(self.scheduler, executor, watching, clock=self.clock)
        # A run of steps is taken at once, without their times being learned from.
        moves_none = all(tier.loads_only for tier in info.tiers)  # but while a request waits for it
        steps_alike = speculation is None and moves_none and not config.measures_steps
        self._run_observers = [each for each in watching if isinstance(each, RunObserver)]
        self._jump = jump and steps_alike and len(self._run_observers) == len(watching)
        self._num_added = 0
        self._finish_times: list[float] = []
        self.notes_parts = False
        self.parts: dict[str, list[tuple[float, int]]] = {}
        self.when_counted: Callable[[int, Sequence[float]], None] = lambda added, ends: None

    def refuses(self, request: Request) -> bool:
        """Whether a request that arrives is refused early; the step events then tell of it."""
        if self._admission is None:
            return False
        now = max(self.clock.now, request.arrival_time)
        refused = self._admission.judge(
            _arrival(request), now, lambda: self.kv.find_prefix(request).num_tokens
        )
        if refused is not None:
            self.engine.note_refusal(refused)
        return refused is not None

    def add(self, request: Request) -> None:
        """Queue a request; if the engine was idle, time goes on with the request's arrival."""
        request.spec = replace(
            request.spec,
            ttft_target=self._targets.of(request.tenant, request.spec.ttft_target),
            seed=self._num_added,
        )
        if self._admission is not None:
            self._admission.enter(_arrival(request), request.arrival_time)
        if not self.engine.has_work():
            self.clock.advance_to(request.arrival_time)
        self.executor.waits = False
        self._num_added += 1
        self.engine.add([request])
        self.when_counted(1, ())

    def expect(
        self, request: Request, sender: Sender, parts: Sequence[tuple[float, int]] = ()
    ) -> None:
        """Another replica has computed the prompt of a request that is about to be added.

        Args:
            parts: When its steps before the last one ended, and how many tokens were computed.
                Their blocks came meanwhile, if there is room that no other request waits for.
        """
        tiers = self.executor.tiers
        assert tiers is not None and tiers.peers is not None
        request.offer = KVOffer(PEERS, request.num_prompt_tokens)
        room = room_to_spare(self.kv, self.scheduler.requests.values()) if parts else 0
        filled = [(time, self._num_blocks(tokens)) for time, tokens in parts]
        ahead = [(time, count) for time, count in filled if count <= room]
        offer = Offer(sender, self._num_blocks(request.num_prompt_tokens), ahead)
        tiers.peers.expect(request.request_id, offer)

    def _num_blocks(self, num_tokens: int) -> int:
        """Whole blocks of so many tokens, in all groups of layers."""
        info = self.executor.info
        return num_tokens // info.block_size * info.kv_groups.count

    def has_work(self) -> bool:
        return self.engine.has_work()

    def die(self, now: float) -> list[Request]:
        """Return the requests that it has, and may not be used any more."""
        self.log.on_death(max(now, self.clock.now), self.kv.pool.num_blocks)
        return list(self.scheduler.requests.values())

    def num_unfinished(self, now: float) -> int:
        """Requests here at ``now``.

        A step that is under way at ``now`` has been taken as a whole: what it ends still counts.
        """
        self._finish_times = [time for time in self._finish_times if time > now]
        return len(self.scheduler.requests) + len(self._finish_times)

    def fullness(self, prompt_tokens: int) -> float:
        """How full it would be with a prompt more; see ``ReplicaLoad.fullness``."""
        return self._demand(prompt_tokens)[0]

    def demand(self) -> tuple[float, int]:
        """What its requests need now.

        Returns:
            How full it is: KV blocks that they hold, and that those which wait will need for what
            they have, of all blocks; or all requests of ``--max-num-seqs``, if that is more. Then
            the prompt tokens that wait.
        """
        return self._demand(0)

    def _demand(self, more_tokens: int) -> tuple[float, int]:
        pool, info, running = self.kv.pool, self.executor.info, self.scheduler.running
        blocks, prompts = pool.num_blocks - pool.num_free, 0
        for request in self.scheduler.requests.values():
            if request.request_id not in running:
                blocks += info.kv_groups.most_blocks(request.num_tokens, info.block_size)
                prompts += request.num_missing_tokens
        if more_tokens:
            blocks += info.kv_groups.most_blocks(more_tokens, info.block_size)
        samples = len(self.scheduler.requests) + bool(more_tokens)
        places = samples / self.scheduler.config.max_num_seqs
        return max(blocks / max(1, pool.num_blocks), places), prompts

    def next_event(self) -> float:
        """When the first step begins after which anything here may look different to others.

        Until then requests only decode: those steps may be taken later, all or up to an arrival.
        """
        run = None
        if (arrival := self._next_arrival()) is not None:
            return arrival
        if self._overdue is None and self._may_jump():
            run = find_decode_run(self.scheduler, TOKEN)
        if run is None:
            return self.clock.now
        return self.executor.last_step_of_run(run.num_requests, run.context, run.max_steps)

    def run(self, until: float) -> list[Request]:
        """Take one step, or a run of those that begin before ``until``. Returns what has ended.

        While it only waits for another replica, it takes none.
        """
        if (arrival := self._next_arrival()) is not None:
            self.clock.advance_to(min(arrival, until))
            if until <= arrival:
                return []
        if self._overdue is not None:
            refuse_overdue(self.engine, self._overdue)
        run = find_decode_run(self.scheduler, TOKEN) if self._may_jump() else None
        if run is not None:
            self._take_run(run, until)
        elif self.has_work():
            self.engine.step()
            if self.notes_parts:
                self._note_parts()
        if ended := self._ended.take():
            ends = [request.finish_time or 0.0 for request in ended]
            self._finish_times += ends
            self.when_counted(0, ends)
        return ended

    def _note_parts(self) -> None:
        """Prompts of which this step was not the last have got so far."""
        for request_id, request in self.scheduler.running.items():
            self.parts.setdefault(request_id, []).append(
                (self.clock.now, request.num_computed_tokens)
            )

    def _next_arrival(self) -> float | None:
        """When blocks come from another replica, if there is nothing to compute before."""
        executor = self.executor
        if not executor.waits or executor.tiers is None:
            return None
        arrival = executor.tiers.next_arrival()
        return None if arrival is None else max(arrival, self.clock.now)

    def _may_jump(self) -> bool:
        return self._jump and self.executor.settled

    def _take_run(self, run: DecodeRun, until: float) -> None:
        scheduler = self.scheduler
        planned = self.executor.decode_run(run.num_requests, run.context, run.max_steps, until)
        num_waiting = len(scheduler.requests) - run.num_requests
        end = planned.times[-1]
        jumped = jump(scheduler, len(planned.durations), TOKEN, end)
        self.clock.advance_to(end)
        observed = ObservedRun(
            planned.times, jumped.requests, run.decisions, num_waiting, jumped.blocks
        )
        for observer in self._run_observers:
            observer.on_run(observed)


def _arrival(request: Request) -> Arrival:
    return Arrival(
        call_id=request.spec.parent_id,
        tenant=request.tenant,
        num_tokens=request.num_prompt_tokens,
        priority=request.spec.priority,
        ttft_target=request.spec.ttft_target,
    )


class EndedQueue:
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
