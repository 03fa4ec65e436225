"""Passes that proposers see, made of token lists."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tests.specs import resolved
from twostroke.core.sampling_params import SamplingParams
from twostroke.core.step import NewRequest, ScheduledRequest, StepPlan
from twostroke.sampling.request_state import RequestState
from twostroke.spec_decode.base import FinishedPass, Proposer


class Conversation:
    """Feeds one proposer with requests that draw given tokens, step by step."""

    def __init__(self, proposer: Proposer) -> None:
        self.proposer = proposer
        self._states: dict[str, RequestState] = {}
        self._drawn: dict[str, list[int]] = {}
        self._released: list[str] = []

    def add(
        self,
        request_id: str,
        prompt: Sequence[int],
        *,
        prediction: Sequence[int] = (),
        tenant: str = "",
        cache_salt: str = "",
    ) -> None:
        spec = resolved(
            request_id,
            prompt,
            params=SamplingParams(detokenize=False),
            prediction_token_ids=prediction,
            tenant=tenant,
            cache_salt=cache_salt,
        )
        new = NewRequest(spec)
        self._states[request_id] = RequestState.of(new)
        self.proposer.update(StepPlan(0, 0.0, new_requests={request_id: new}))

    def end(self, request_id: str) -> None:
        del self._states[request_id]
        self._drawn.pop(request_id, None)
        self.proposer.update(StepPlan(0, 0.0, released=[request_id]))

    def draw(
        self, request_id: str, token_ids: Sequence[int], most: int = 8, forced: bool = False
    ) -> list[int]:
        """The request draws these tokens in one step; its drafts for the next."""
        state = self._states[request_id]
        state.token_ids += self._drawn.get(request_id, [])
        self._drawn[request_id] = list(token_ids)
        share = ScheduledRequest(request_id, state.num_tokens - 1, 1, True, max_new_drafts=most)
        plan = StepPlan(0, 0.0)
        plan.add(share)
        self.proposer.update(plan)
        table = np.zeros((1, 1), dtype=np.int32)
        drawn = {request_id: list(token_ids)}
        step = FinishedPass(plan, [state], table, drawn, forced=[request_id] if forced else [])
        drafts = self.proposer.propose(step)
        assert set(drafts) <= {request_id}
        assert len(drafts.get(request_id, [])) <= most
        return drafts.get(request_id, [])
