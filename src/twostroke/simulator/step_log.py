"""What each step did: small enough for millions of steps, and the same for steps and for runs of them."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

from twostroke.simulator.step_shape import StepShape


def _integers() -> array[int]:
    return array("q")


def _numbers() -> array[float]:
    return array("d")


@dataclass(slots=True)
class StepLog:
    """Columns with one entry per step, and columns with one entry per record: a step, or several that only decode.

    ``columns.to_columns`` gives every column one entry per step.

    Attributes:
        start: Of each step, in seconds; ``end`` likewise. A step may begin long after the one before: then nobody was
            there.
        steps: How many steps a record stands for. Its other entries are those of the first of them; in each further one
            ``decode_context`` is more by the number of requests, and every request draws again.
        decode_requests: Requests that computed one token (or, under speculation, verified drafts).
        decode_context: Tokens that those attended to.
        prefill_tokens: Prompt tokens computed.
        prefill_context: Pairs of a prompt token and a token that it attended to.
        new_tokens: Tokens drawn.
        gaps: Requests that also got a token in the step before: for each, ``end - start`` lies between two tokens.
        running: Requests after the last step of a record, ``decode_requests`` after the others.
        waiting: Requests that wait, after the step.
        free_blocks: KV blocks after the last step of a record. Within a record and between two, none becomes free.
        taken: For each block that a run took, the number of the step.
        binding: What most of the step waited for, as an index into ``bindings``.
        other_gaps: Seconds between two tokens of a request that was left out of the steps between them.
    """

    start: array[float] = field(default_factory=_numbers)
    end: array[float] = field(default_factory=_numbers)
    steps: array[int] = field(default_factory=_integers)
    decode_requests: array[int] = field(default_factory=_integers)
    decode_context: array[int] = field(default_factory=_integers)
    prefill_tokens: array[int] = field(default_factory=_integers)
    prefill_context: array[int] = field(default_factory=_integers)
    new_tokens: array[int] = field(default_factory=_integers)
    gaps: array[int] = field(default_factory=_integers)
    running: array[int] = field(default_factory=_integers)
    waiting: array[int] = field(default_factory=_integers)
    free_blocks: array[int] = field(default_factory=_integers)
    taken: array[int] = field(default_factory=_integers)
    binding: array[int] = field(default_factory=_integers)
    other_gaps: array[float] = field(default_factory=_numbers)
    bindings: dict[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.start)

    def add(
        self,
        start: float,
        end: float,
        shape: StepShape,
        *,
        new_tokens: int,
        gaps: int,
        running: int,
        waiting: int,
        free_blocks: int,
        binding: str,
    ) -> None:
        """Append one step."""
        requests, context, prefill = shape[:3]
        self.start.append(start)
        self.end.append(end)
        self.free_blocks.append(free_blocks)
        self.steps.append(1)
        self.decode_requests.append(requests)
        self.decode_context.append(context)
        self.prefill_tokens.append(sum([count for count, _ in prefill]) if prefill else 0)
        pairs = sum([count * cached + count * (count + 1) // 2 for count, cached in prefill]) if prefill else 0
        self.prefill_context.append(pairs)
        self.new_tokens.append(new_tokens)
        self.gaps.append(gaps)
        self.running.append(running)
        self.waiting.append(waiting)
        self.binding.append(self._code(binding))

    def add_run(
        self,
        times: array[float],
        requests: int,
        context: int,
        *,
        first_gaps: int,
        left: int,
        waiting: int,
        taken: Sequence[int],
        free_blocks: int,
        bindings: Sequence[tuple[str, int]],
    ) -> None:
        """Append consecutive steps in which ``requests`` requests decode.

        Args:
            times: When the first begins, then when each ends.
            context: Tokens attended to in the first; ``requests`` more in each further one.
            first_gaps: ``gaps`` of the first.
            left: Requests that run on after the last.
            taken: In which of the steps a block was taken, ascending; ``free_blocks``: after the last.
            bindings: What how many of them wait for: each becomes a record.
        """
        first, free = len(self.start), self.free_blocks[-1]
        self.start += times[:-1]
        self.end += times[1:]
        self.taken += array("q", [first + at for at in taken])
        gaps, done = first_gaps, 0
        for binding, count in bindings:
            done += count
            self.steps.append(count)
            self.decode_requests.append(requests)
            self.decode_context.append(context)
            self.prefill_tokens.append(0)
            self.prefill_context.append(0)
            self.new_tokens.append(requests)
            self.gaps.append(gaps)
            self.running.append(requests)
            self.waiting.append(waiting)
            self.free_blocks.append(free - bisect_left(taken, done))
            self.binding.append(self._code(binding))
            gaps = requests
            context += count * requests
        self.running[-1], self.free_blocks[-1] = left, free_blocks

    def _code(self, binding: str) -> int:
        return self.bindings.setdefault(binding, len(self.bindings))
