"""Masks that come late, as those of slow forms and busy machines do."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from random import Random
from unittest.mock import patch

from twostroke.runtime.constraints import states
from twostroke.runtime.constraints.answer import ConstrainedAnswer
from twostroke.sampling.request_state import RequestState


@contextmanager
def late_masks(seed: int) -> Iterator[None]:
    """Steps wait for no mask, and some masks take longer than a step."""
    random, find_masks = Random(seed), ConstrainedAnswer.find_masks

    def find_late(answer: ConstrainedAnswer, request: RequestState, drafts: Sequence[int]) -> None:
        time.sleep(random.choice([0, 0, 0.003]))
        find_masks(answer, request, drafts)

    with (
        patch.object(ConstrainedAnswer, "find_masks", find_late),
        patch.object(states, "LEAST_WAIT", 0.0),
        patch.object(states, "WAIT_SHARE", 0.0),
    ):
        yield
