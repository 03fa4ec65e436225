"""What each step did, in a few numbers: an observer of a simulated engine."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from twostroke.core.output import RequestOutput
from twostroke.core.request import Request
from twostroke.observability.observer import ObservedStep
from twostroke.scheduling.scheduler import Scheduler
from twostroke.simulator.fleet.executor import SimulatedExecutor
from twostroke.simulator.jumping.observed_run import ObservedRun


class Codes(dict[str, int]):
    """Numbers names in the order in which they are first asked for."""

    def __missing__(self, name: str) -> int:
        code = self[name] = len(self)
        return code


class StepLog:
    """Columns with one entry per step; the same whether steps are taken singly or in runs.

    Args:
        executor: Whose steps these are.
        scheduler: What has planned them.

    Attributes:
        start: When a step begins, in seconds; long after the one before if the engine was idle.
        end: When it ends, in seconds.
        decode_requests: Requests that computed one token, and their drafts under speculation.
        decode_context: Tokens that those attended to.
        prefill_tokens: Prompt tokens computed.
        prefill_context: Pairs of a prompt token and a token that it attended to.
        drafts: Draft tokens that those requests verified.
        accepted: Tokens drawn and kept that had been drafted.
        rejected: Drafts that were wrong, or came after the end.
        new_tokens: Tokens drawn and kept.
        gaps: Requests that also got a token in the step before: ``end - start`` lies between both.
        running: Requests that run after the step.
        waiting: Requests that wait after the step.
        free_blocks: KV blocks that are free after the step.
        binding: What most of the step waited for, as an index into ``bindings``.
        kept_out: Why the first waiting request did not enter, as an index into ``reasons``; those
            behind it wait for the same. ``""`` where no request waits.
        other_gaps: Seconds between two tokens of a request that the steps between left out.
    """

    def __init__(self, executor: SimulatedExecutor, scheduler: Scheduler) -> None:
        self.start, self.end, self.other_gaps = array("d"), array("d"), array("d")
        self.decode_requests, self.decode_context = array("i"), array("q")
        self.prefill_tokens, self.prefill_context = array("i"), array("q")
        self.drafts, self.new_tokens, self.gaps = array("i"), array("i"), array("i")
        self.accepted, self.rejected = array("i"), array("i")
        self.running, self.waiting, self.free_blocks = array("i"), array("i"), array("i")
        self.binding, self.kept_out = array("i"), array("i")
        self.bindings, self.reasons = Codes(), Codes()
        self._executor = executor
        self._scheduler = scheduler
        self._last_token_time: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self.start)

    def on_add(self, requests: Sequence[Request]) -> None:
        """Requests count from their first step on."""

    def on_step(self, step: ObservedStep) -> None:
        shape, num_running, num_waiting = self._executor.last_shape, *self._count()
        tokens = pairs = 0
        for count, cached in shape.prefill:
            tokens += count
            pairs += count * cached + count * (count + 1) // 2
        self.start.append(step.plan.time)
        self.end.append(step.finished)
        self.decode_requests.append(shape.decode_requests)
        self.decode_context.append(shape.decode_context)
        self.prefill_tokens.append(tokens)
        self.prefill_context.append(pairs)
        self.drafts.append(shape.drafts)
        self.new_tokens.append(sum(len(output.token_ids) for output in step.outputs))
        accepted = rejected = 0
        if step.result.num_accepted_drafts:
            for output in step.outputs:
                accepted += output.num_accepted_drafts
                rejected += len(output.draft_token_ids) - output.num_accepted_drafts
        self.accepted.append(accepted)
        self.rejected.append(rejected)
        self.gaps.append(self._count_gaps(step.result.token_ids, step.plan.time, step.finished))
        self.running.append(num_running)
        self.waiting.append(num_waiting)
        self.free_blocks.append(self._scheduler.kv.pool.num_free)
        self.binding.append(self.bindings[self._executor.last_binding])
        # The plan ends with why the first waiting request does not enter.
        kept_out = step.plan.decisions[-1].reason.value if num_waiting else ""
        self.kept_out.append(self.reasons[kept_out])
        self._forget(step.ended)

    def on_run(self, run: ObservedRun) -> None:
        steps, count, times = run.num_steps, len(run.requests), run.times
        context = sum(request.num_computed_tokens + 1 for request in run.requests) - steps * count
        self.start.extend(times[:-1])
        self.end.extend(times[1:])
        self.decode_requests.extend(_repeat(count, steps))
        self.decode_context.extend(range(context, context + steps * count, count))
        self.prefill_tokens.extend(_repeat(0, steps))
        self.prefill_context.extend(range(1) if steps == 1 else (0,) * steps)
        for column in (self.drafts, self.accepted, self.rejected):
            column.extend(_repeat(0, steps))
        self.new_tokens.extend(_repeat(count, steps))
        request_ids = [request.request_id for request in run.requests]
        self.gaps.append(self._count_gaps(request_ids, times[0], times[1]))
        self.gaps.extend(_repeat(count, steps - 1))
        self._last_token_time.update(dict.fromkeys(request_ids, times[-1]))
        self.running.extend(_repeat(count, steps - 1))
        self.running.append(len(self._scheduler.running))
        self.waiting.extend(_repeat(run.num_waiting, steps))
        self.free_blocks.extend([free for free, _ in run.blocks[:-1]])
        self.free_blocks.append(self._scheduler.kv.pool.num_free)
        for binding, length in self._executor.last_bindings:
            self.binding.extend(_repeat(self.bindings[binding], length))
        kept_out = run.decisions[-1].reason.value if run.decisions else ""
        self.kept_out.extend(_repeat(self.reasons[kept_out], steps))
        self._forget(run.ended)

    def on_end(self, requests: Sequence[Request], outputs: Sequence[RequestOutput]) -> None:
        self._forget(requests)

    def close(self) -> None:
        """The columns stay readable."""

    def on_death(self, now: float, num_blocks: int) -> None:
        """A last step without duration: nothing is here any more."""
        self.start.append(now)
        self.end.append(now)
        for column in (self.decode_requests, self.decode_context, self.prefill_tokens):
            column.append(0)
        for column in (self.prefill_context, self.drafts, self.new_tokens, self.gaps):
            column.append(0)
        for column in (self.accepted, self.rejected, self.running, self.waiting):
            column.append(0)
        self.free_blocks.append(num_blocks)
        self.binding.append(self.bindings[""])
        self.kept_out.append(self.reasons[""])

    def forget_tokens(self) -> None:
        """None of its tokens was kept: others drew them again."""
        self.new_tokens = array("i", bytes(self.new_tokens.itemsize * len(self.new_tokens)))

    def drop_unfinished(self) -> None:
        """Forget what an interruption left half written: Ctrl-C comes between any two lines."""
        columns: list[array[int] | array[float]] = [
            *(self.start, self.end, self.decode_requests, self.decode_context),
            *(self.prefill_tokens, self.prefill_context, self.drafts),
            *(self.accepted, self.rejected),
            *(self.new_tokens, self.gaps),
            *(self.running, self.waiting, self.free_blocks, self.binding, self.kept_out),
        ]
        num_complete = min(map(len, columns))
        for column in columns:
            del column[num_complete:]

    def _count(self) -> tuple[int, int]:
        """Running and waiting requests."""
        num_running = len(self._scheduler.running)
        return num_running, len(self._scheduler.requests) - num_running

    def _count_gaps(
        self, request_ids: Sequence[str] | dict[str, list[int]], start: float, end: float
    ) -> int:
        """How many of the requests that get a token also got one in the step before.

        The seconds between two tokens of the others are noted.
        """
        last_times = self._last_token_time
        gaps, left_out = 0, []
        for request_id in request_ids:
            last = last_times.get(request_id)
            if last == start:
                gaps += 1
            elif last is not None:
                left_out.append(request_id)
        for request_id in sorted(left_out):
            self.other_gaps.append(end - last_times[request_id])
        last_times.update(dict.fromkeys(request_ids, end))
        return gaps

    def _forget(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self._last_token_time.pop(request.request_id, None)


def _repeat(value: int, count: int) -> array[int]:
    return array("i", [value]) * count
