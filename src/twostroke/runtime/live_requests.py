"""What an executor keeps of each running request between steps, fed by the plans."""

from __future__ import annotations

from twostroke.core.step import ScheduledRequest, StepPlan
from twostroke.sampling.request_state import RequestState


class LiveRequests:
    """All requests that hold blocks, by id."""

    def __init__(self) -> None:
        self._requests: dict[str, RequestState] = {}

    def __getitem__(self, request_id: str) -> RequestState:
        return self._requests[request_id]

    def __len__(self) -> int:
        return len(self._requests)

    def update(self, plan: StepPlan) -> None:
        """Take in a plan: drop what was released, add what is new, append new tokens."""
        for request_id in plan.released:
            self._requests.pop(request_id, None)
        for request_id, new in plan.new_requests.items():
            self._requests[request_id] = RequestState.of(new)
        for request_id, share in plan.scheduled.items():
            state = self._requests[request_id]
            if share.new_token_ids:
                state.token_ids += share.new_token_ids
            end = share.start + share.num_tokens - len(share.draft_token_ids)
            state.num_awaited = max(0, end - len(state.token_ids))

    def input_tokens(self, share: ScheduledRequest) -> list[int]:
        """The tokens that a share computes: known ones, then drafts; 0 for one that is drawn yet.

        That is the last, and of a share without drafts.
        """
        state = self._requests[share.request_id]
        end = share.start + share.num_tokens - len(share.draft_token_ids)
        return state.token_ids[share.start : end] + share.draft_token_ids + [0] * state.num_awaited
