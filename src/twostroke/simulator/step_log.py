"""What each step did, in columns: small enough for millions of steps, and the same for steps and for runs of them."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from twostroke.simulator.step_shape import StepShape


def _integers() -> array[int]:
    return array("q")


def _numbers() -> array[float]:
    return array("d")


@dataclass(slots=True)
class StepLog:
    """One entry per step and column.

    Attributes:
        start: Seconds; ``end`` likewise. A step may begin long after the one before: then nobody was there.
        decode_requests: Requests that computed one token (or, under speculation, verified drafts).
        decode_context: Tokens that those attended to.
        prefill_tokens: Prompt tokens computed.
        prefill_context: Pairs of a prompt token and a token that it attended to.
        new_tokens: Tokens drawn.
        gaps: Requests that also got a token in the step before: for each, ``end - start`` lies between two tokens.
        other_gaps: Seconds between two tokens of a request that was left out of the steps between them.
        running: Requests after the step; ``waiting`` likewise.
        free_blocks: KV blocks after the step.
        binding: What most of the step waited for, as an index into ``bindings``.
    """

    start: array[float] = field(default_factory=_numbers)
    end: array[float] = field(default_factory=_numbers)
    decode_requests: array[int] = field(default_factory=_integers)
    decode_context: array[int] = field(default_factory=_integers)
    prefill_tokens: array[int] = field(default_factory=_integers)
    prefill_context: array[int] = field(default_factory=_integers)
    new_tokens: array[int] = field(default_factory=_integers)
    gaps: array[int] = field(default_factory=_integers)
    running: array[int] = field(default_factory=_integers)
    waiting: array[int] = field(default_factory=_integers)
    free_blocks: array[int] = field(default_factory=_integers)
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
        self.start.append(start)
        self.end.append(end)
        self.decode_requests.append(shape.decode_requests)
        self.decode_context.append(shape.decode_context)
        prefill = shape.prefill
        self.prefill_tokens.append(sum([count for count, _ in prefill]) if prefill else 0)
        pairs = sum([count * cached + count * (count + 1) // 2 for count, cached in prefill]) if prefill else 0
        self.prefill_context.append(pairs)
        self.new_tokens.append(new_tokens)
        self.gaps.append(gaps)
        self.running.append(running)
        self.waiting.append(waiting)
        self.free_blocks.append(free_blocks)
        self.binding.append(self._code(binding))

    def add_run(
        self,
        times: Sequence[float],
        requests: int,
        context: int,
        *,
        first_gaps: int,
        left: int,
        waiting: int,
        free_blocks: Sequence[int],
        bindings: Sequence[tuple[str, int]],
    ) -> None:
        """Append consecutive steps in which ``requests`` requests decode.

        Args:
            times: When the first begins, then when each ends.
            context: Tokens attended to in the first; ``requests`` more in each further one.
            first_gaps: ``gaps`` of the first.
            left: Requests that run on after the last.
        """
        steps = len(times) - 1
        same = array("q", [requests]) * steps
        none = array("q", [0]) * steps
        self.start.extend(times[:-1])
        self.end.extend(times[1:])
        self.decode_requests += same
        self.decode_context.extend(range(context, context + steps * requests, requests))
        self.prefill_tokens += none
        self.prefill_context += none
        self.new_tokens += same
        self.gaps.append(first_gaps)
        self.gaps += same[1:]
        self.running += same[1:]
        self.running.append(left)
        self.waiting += array("q", [waiting]) * steps
        self.free_blocks.extend(free_blocks)
        for binding, count in bindings:
            self.binding += array("q", [self._code(binding)]) * count

    def _code(self, binding: str) -> int:
        return self.bindings.setdefault(binding, len(self.bindings))
