"""The logs of all replicas as numpy columns."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from twostroke.simulator.fleet.step_log import StepLog

Integers = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Columns:
    """One entry per step, replica after replica; names as in ``StepLog``.

    ``first`` is where each replica begins.
    """

    start: Numbers
    end: Numbers
    decode_requests: Integers
    decode_context: Integers
    prefill_tokens: Integers
    prefill_context: Integers
    drafts: Integers
    accepted: Integers
    rejected: Integers
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
    """Copy logs; codes of bindings and reasons are made the same in all."""
    bindings = tuple(sorted({name for log in logs for name in log.bindings}))
    reasons = tuple(sorted({name for log in logs for name in log.reasons}))
    firsts = np.cumsum([0, *(len(log) for log in logs)])[:-1]
    return Columns(
        start=_numbers([log.start for log in logs]),
        end=_numbers([log.end for log in logs]),
        decode_requests=_integers([log.decode_requests for log in logs]),
        decode_context=_integers([log.decode_context for log in logs]),
        prefill_tokens=_integers([log.prefill_tokens for log in logs]),
        prefill_context=_integers([log.prefill_context for log in logs]),
        drafts=_integers([log.drafts for log in logs]),
        accepted=_integers([log.accepted for log in logs]),
        rejected=_integers([log.rejected for log in logs]),
        new_tokens=_integers([log.new_tokens for log in logs]),
        gaps=_integers([log.gaps for log in logs]),
        running=_integers([log.running for log in logs]),
        waiting=_integers([log.waiting for log in logs]),
        free_blocks=_integers([log.free_blocks for log in logs]),
        binding=_recoded([(log.binding, log.bindings) for log in logs], bindings),
        kept_out=_recoded([(log.kept_out, log.reasons) for log in logs], reasons),
        other_gaps=_numbers([log.other_gaps for log in logs]),
        bindings=bindings,
        reasons=reasons,
        first=tuple(int(first) for first in firsts),
    )


def _recoded(
    columns: Sequence[tuple[array[int], Mapping[str, int]]], names: tuple[str, ...]
) -> Integers:
    """Columns of codes, each with codes of its own, as one with codes that are indices of names."""
    recoded = [
        np.array([names.index(name) for name in codes] or [0], dtype=np.int64)[column]
        for column, codes in columns
    ]
    return np.concatenate([np.zeros(0, dtype=np.int64), *recoded])


def _numbers(columns: Sequence[array[float]]) -> Numbers:
    arrays = [np.array(column, dtype=np.float64) for column in columns]
    return np.concatenate([np.zeros(0), *arrays])


def _integers(columns: Sequence[array[int]]) -> Integers:
    arrays = [np.array(column, dtype=np.int64) for column in columns]
    return np.concatenate([np.zeros(0, dtype=np.int64), *arrays])
