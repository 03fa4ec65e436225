"""The logs of all replicas as numpy columns."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from twostroke.simulator.step_log import StepLog

Integers = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Columns:
    """One entry per step, replica after replica; names as in ``StepLog``. ``first`` is where each replica begins."""

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
    """Copy logs, a run of steps as one entry for each; codes of bindings and reasons are made the same in all."""
    runs = [_Runs(log) for log in logs]
    bindings, binding = _same_codes([(log.bindings, run.same(log.binding)) for log, run in zip(logs, runs)])
    reasons, kept_out = _same_codes([(log.reasons, run.same(log.kept_out)) for log, run in zip(logs, runs)])
    lengths = np.cumsum([0, *(len(log) for log in logs)])

    def same(column: Callable[[StepLog], array[int]]) -> Integers:
        return np.concatenate([run.same(column(run.log)) for run in runs])

    return Columns(
        start=_numbers([log.start for log in logs]),
        end=_numbers([log.end for log in logs]),
        decode_requests=same(lambda log: log.decode_requests),
        decode_context=np.concatenate([run.contexts() for run in runs]),
        prefill_tokens=same(lambda log: log.prefill_tokens),
        prefill_context=same(lambda log: log.prefill_context),
        new_tokens=same(lambda log: log.new_tokens),
        gaps=np.concatenate([run.but_first(run.log.gaps) for run in runs]),
        running=np.concatenate([run.but_last(run.log.running) for run in runs]),
        waiting=same(lambda log: log.waiting),
        free_blocks=_integers([log.free_blocks for log in logs]),
        binding=binding,
        kept_out=kept_out,
        other_gaps=_numbers([log.other_gaps for log in logs]),
        bindings=bindings,
        reasons=reasons,
        first=tuple(int(length) for length in lengths[:-1]),
    )


def _same_codes(columns: Sequence[tuple[Mapping[str, int], Integers]]) -> tuple[tuple[str, ...], Integers]:
    """Names in order, and the columns one after the other with codes that are indices into them."""
    names = sorted({name for codes, _ in columns for name in codes})
    translated = [
        np.array([names.index(name) for name in codes] or [0], dtype=np.int64)[column] for codes, column in columns
    ]
    return tuple(names), np.concatenate(translated) if translated else np.zeros(0, dtype=np.int64)


class _Runs:
    """Gives the records of a log one entry for each of their steps."""

    def __init__(self, log: StepLog) -> None:
        self.log = log
        self._steps = np.array(log.steps, dtype=np.int64)
        ends = np.cumsum(self._steps)
        self._firsts, self._lasts = ends - self._steps, ends - 1
        self._requests = self.same(log.decode_requests)

    def same(self, column: array[int]) -> Integers:
        """The record's entry, for every step."""
        return np.repeat(np.array(column, dtype=np.int64), self._steps)

    def contexts(self) -> Integers:
        """More by the number of requests in each further step."""
        later = np.arange(len(self.log)) - np.repeat(self._firsts, self._steps)
        found: Integers = self.same(self.log.decode_context) + later * self._requests
        return found

    def but_first(self, column: array[int]) -> Integers:
        """The record's entry for its first step, the number of requests for the others."""
        return self._with(column, self._firsts)

    def but_last(self, column: array[int]) -> Integers:
        """The record's entry for its last step, the number of requests for the others."""
        return self._with(column, self._lasts)

    def _with(self, column: array[int], at: Integers) -> Integers:
        found = self._requests.copy()
        found[at] = np.array(column, dtype=np.int64)
        return found


def _integers(columns: Sequence[array[int]]) -> Integers:
    return np.concatenate([np.array(column, dtype=np.int64) for column in columns])


def _numbers(columns: Sequence[array[float]]) -> Numbers:
    return np.concatenate([np.array(column, dtype=np.float64) for column in columns])
