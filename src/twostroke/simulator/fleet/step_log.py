"""What each step did: small enough for millions of steps, and the same for steps and for runs of
them.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from struct import Struct

from twostroke.simulator.cost.step_shape import StepShape

# Entries of a record, in this order, 8 bytes each.
FIELDS = (
    "steps",
    "decode_requests",
    "decode_context",
    "prefill_tokens",
    "prefill_context",
    "new_tokens",
    "gaps",
    "running",
    "waiting",
    "free_blocks",
    "binding",
    "kept_out",
)
_PACK = Struct(f"{len(FIELDS)}q").pack


class _Codes(dict[str, int]):
    """Numbers names in the order in which they are first asked for."""

    def __missing__(self, name: str) -> int:
        code = self[name] = len(self)
        return code


def _numbers() -> array[float]:
    return array("d")


@dataclass(slots=True)
class StepLog:
    """Columns with one entry per step, and records of a step or of several that only decode.

    ``columns.to_columns`` gives all of it one entry per step.

    Attributes:
        start: Of each step, in seconds; ``end`` likewise. A step may begin long after the one
            before: then nobody was there.
        taken: How many blocks each step took, or 0 where a record stands for one step alone: of
            each record the first ``block_size`` steps, after which it is the same again.
        other_gaps: Seconds between two tokens of a request that was left out of the steps between
            them.
        records: Packed, ``FIELDS`` for each:

            - steps: How many steps a record stands for. Its other entries are those of the first of
              them; in each further one ``decode_context`` is more by the number of requests, and
              every request draws again.
            - decode_requests: Requests that computed one token (or, under speculation, verified
              drafts).
            - decode_context: Tokens that those attended to.
            - prefill_tokens: Prompt tokens computed.
            - prefill_context: Pairs of a prompt token and a token that it attended to.
            - new_tokens: Tokens drawn.
            - gaps: Requests that also got a token in the step before: ``end - start`` lies between
              the two.
            - running: Requests after the last step of a record, ``decode_requests`` after the
              others.
            - waiting: Requests that wait, after the step.
            - free_blocks: KV blocks after the last step of a record. Within one and between two,
              none becomes free.
            - binding: What most of the step waited for, as an index into ``bindings``.
            - kept_out: Why the first waiting request did not enter, as an index into ``reasons``;
              it and those behind it wait for the same. ``""`` where nobody waits.
    """

    block_size: int = 1
    start: array[float] = field(default_factory=_numbers)
    end: array[float] = field(default_factory=_numbers)
    taken: list[int] = field(default_factory=list)
    other_gaps: array[float] = field(default_factory=_numbers)
    records: bytearray = field(default_factory=bytearray)
    bindings: dict[str, int] = field(default_factory=_Codes)
    reasons: dict[str, int] = field(default_factory=_Codes)
    _free: int = 0

    def __len__(self) -> int:
        return len(self.start)

    def add(
        self,
        start: float,
        end: float,
        shape: StepShape,
        binding: str,
        *,
        new_tokens: int,
        gaps: int,
        running: int,
        waiting: int,
        free_blocks: int,
        kept_out: str = "",
    ) -> None:
        """Append one step."""
        requests, context, prefill = shape[:3]
        self.start.append(start)
        self.end.append(end)
        self.taken.append(0)
        tokens = pairs = 0
        for count, cached in prefill:
            tokens += count
            pairs += count * cached + count * (count + 1) // 2
        code, why = self.bindings[binding], self.reasons[kept_out]
        self.records += _PACK(
            1,
            requests,
            context,
            tokens,
            pairs,
            new_tokens,
            gaps,
            running,
            waiting,
            free_blocks,
            code,
            why,
        )
        self._free = free_blocks

    def add_run(
        self,
        times: array[float],
        requests: int,
        context: int,
        *,
        first_gaps: int,
        left: int,
        waiting: int,
        taken: list[int],
        free_blocks: int,
        bindings: Sequence[tuple[str, int]],
        kept_out: str = "",
    ) -> None:
        """Append consecutive steps in which ``requests`` requests decode.

        Args:
            times: When the first begins, then when each ends.
            context: Tokens attended to in the first; ``requests`` more in each further one.
            first_gaps: ``gaps`` of the first.
            left: Requests that run on after the last.
            taken: How many blocks each of the steps took, or of the first ``block_size``, after
                which it is the same again; ``free_blocks``: after the last.
            bindings: What how many of them wait for: each becomes a record.
        """
        self.start += times[:-1]
        self.end += times[1:]
        gaps, running, free, done, steps = first_gaps, requests, self._free, 0, len(times) - 1
        for binding, count in bindings:
            self.taken += taken[:count] if count > 1 else (0,)
            done += count
            if done == steps:
                running, free = left, free_blocks
            else:
                rounds = taken * (count // len(taken) + 2)
                free -= sum(rounds[:count])
                taken = rounds[count : count + len(taken)]
            code, why = self.bindings[binding], self.reasons[kept_out]
            self.records += _PACK(
                count, requests, context, 0, 0, requests, gaps, running, waiting, free, code, why
            )
            gaps = requests
            context += count * requests
        self._free = free_blocks

    def drop_unfinished(self) -> None:
        """Forget what an interruption left half written: Ctrl-C comes between any two
        operations.
        """
        counts = memoryview(self.records).cast("q")[:: len(FIELDS)].tolist()
        del self.start[sum(counts) :], self.end[sum(counts) :]
        del self.taken[sum(min(count, self.block_size) for count in counts) :]
