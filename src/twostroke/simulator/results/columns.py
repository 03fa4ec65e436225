"""The logs of all replicas as numpy columns."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt

from twostroke.simulator.fleet.step_log import FIELDS, StepLog

Integers = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Columns:
    """One entry per step, replica after replica; names as in ``StepLog``. ``first`` is where each
    replica begins.
    """

    start: Numbers
    end: Numbers
    decode_requests: Integers
    decode_context: Integers
    prefill_tokens: Integers
    prefill_context: Integers
    new_tokens: Integers
    gaps: Integers
    running: Integers
    waiting: Integers
    free_blocks: Integers
    binding: Integers
    kept_out: Integers
    other_gaps: Numbers
    bindings: tuple[str, ...]
    reasons: tuple[str, ...]
    first: tuple[int, ...]

    @property
    def duration(self) -> Numbers:
        return self.end - self.start

    def replica(self, number: int) -> slice:
        """The steps of one replica."""
        end = self.first[number + 1] if number + 1 < len(self.first) else len(self.start)
        return slice(self.first[number], end)


def to_columns(logs: Sequence[StepLog]) -> Columns:
    """Copy logs, a run of steps as one entry for each; codes of bindings and reasons are made the
    same in all.
    """
    runs = [_Runs(log) for log in logs]
    bindings, binding = _same_codes(runs, "binding", [log.bindings for log in logs])
    reasons, kept_out = _same_codes(runs, "kept_out", [log.reasons for log in logs])
    lengths = np.cumsum([0, *(len(log) for log in logs)])

    def same(name: str) -> Integers:
        return np.concatenate([run.same(name) for run in runs])

    return Columns(
        start=_numbers([log.start for log in logs]),
        end=_numbers([log.end for log in logs]),
        decode_requests=np.concatenate([run.requests for run in runs]),
        decode_context=np.concatenate([run.contexts() for run in runs]),
        prefill_tokens=same("prefill_tokens"),
        prefill_context=same("prefill_context"),
        new_tokens=same("new_tokens"),
        gaps=np.concatenate([run.but_first("gaps") for run in runs]),
        running=np.concatenate([run.but_last("running") for run in runs]),
        waiting=same("waiting"),
        free_blocks=np.concatenate([run.free_blocks() for run in runs]),
        binding=binding,
        kept_out=kept_out,
        other_gaps=_numbers([log.other_gaps for log in logs]),
        bindings=bindings,
        reasons=reasons,
        first=tuple(int(length) for length in lengths[:-1]),
    )


def _same_codes(
    runs: Sequence[_Runs], name: str, codes: Sequence[Mapping[str, int]]
) -> tuple[tuple[str, ...], Integers]:
    """Names in order, and a column of all logs with codes that are indices into them."""
    names = sorted(set(chain.from_iterable(codes)))
    new = [
        np.array([names.index(each) for each in known] or [0], dtype=np.int64) for known in codes
    ]
    translated = [run.same(name, of) for run, of in zip(runs, new)]
    return tuple(names), np.concatenate(translated) if translated else np.zeros(0, dtype=np.int64)


class _Runs:
    """Gives the records of a log one entry for each of their steps."""

    def __init__(self, log: StepLog) -> None:
        table = np.frombuffer(bytes(log.records), dtype=np.int64).reshape(-1, len(FIELDS))
        self._columns = dict(zip(FIELDS, np.ascontiguousarray(table.T)))
        self._log = log
        self._steps = self._columns["steps"]
        ends = np.cumsum(self._steps)
        self._firsts, self._lasts = ends - self._steps, ends - 1
        self._later = np.arange(len(log)) - np.repeat(self._firsts, self._steps)
        self.requests = self.same("decode_requests")

    def same(self, name: str, codes: Integers | None = None) -> Integers:
        """The record's entry, or what ``codes`` has for it, for every step."""
        column = self._columns[name]
        return np.repeat(column if codes is None else codes[column], self._steps)

    def contexts(self) -> Integers:
        """More by the number of requests in each further step."""
        found: Integers = self.same("decode_context") + self._later * self.requests
        return found

    def free_blocks(self) -> Integers:
        """What the record before left, less those taken since; what the record says for its last
        step.
        """
        after = self._columns["free_blocks"]
        before = np.zeros_like(after)
        before[1:] = after[:-1]
        new = self._taken()
        taken = np.cumsum(new)
        before += taken[self._firsts] - new[self._firsts]
        found: Integers = np.repeat(before, self._steps) - taken
        found[self._lasts] = after
        return found

    def _taken(self) -> Integers:
        """Blocks that each step took, where a record stands for several."""
        size = self._log.block_size
        kept = np.minimum(self._steps, size)
        at = np.repeat(np.cumsum(kept) - kept, self._steps) + self._later % size
        found: Integers = np.fromiter(self._log.taken, np.int64)[at]
        return found

    def but_first(self, name: str) -> Integers:
        """The record's entry for its first step, the number of requests for the others."""
        return self._with(name, self._firsts)

    def but_last(self, name: str) -> Integers:
        """The record's entry for its last step, the number of requests for the others."""
        return self._with(name, self._lasts)

    def _with(self, name: str, at: Integers) -> Integers:
        found = self.requests.copy()
        found[at] = self._columns[name]
        return found


def _numbers(columns: Sequence[array[float]]) -> Numbers:
    return np.concatenate([np.array(column, dtype=np.float64) for column in columns])
