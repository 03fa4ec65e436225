"""Whether the keys, values and states that a pass writes are finite, without waiting for a GPU."""

from __future__ import annotations

from collections.abc import Callable

import torch

from twostroke.runtime.step_run import StepRun
from twostroke.sampling.transfer import start_transfer


def begin_finite_check(step: StepRun) -> Callable[[], list[int]]:
    """Begin to ask whether the keys and values that the pass writes are finite.

    Logits show what is wrong with rows that are sampled from. Others may not reach them (in a chunk
    before the last, or beyond a window), but they lie in the cache.
    """
    checks = [step.kv.are_finite(step.batch.attention.slots)]
    if step.kv.recurrent.exist:
        names = [share.request_id for share in step.batch.shares]
        checks.append(step.kv.recurrent.are_finite(names))
    return start_transfer(torch.stack(checks))


def fail_non_finite(step: StepRun) -> None:
    """End requests whose keys or values are not finite."""
    batch, kv = step.batch, step.kv
    for index, share in enumerate(batch.shares):
        if share.request_id in step.dropped:
            continue
        slots = batch.attention.slots[batch.known_rows(index)]  # of drafts, logits decide
        states = kv.recurrent
        is_finite = not states.exist or bool(states.are_finite([share.request_id]))
        if not (is_finite and kv.are_finite(slots)):
            step.fail(index)
