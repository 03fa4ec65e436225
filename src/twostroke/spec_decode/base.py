"""The seam of drafting: guesses of next tokens, made by the executor once a pass has been drawn."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from twostroke.core.step import StepPlan
from twostroke.sampling.request_state import RequestState


class Continuation(NamedTuple):
    """A request that may get drafts.

    Attributes:
        request: Its tokens are those that plans have named: ``new_token_ids`` come after them.
        new_token_ids: What the pass has drawn, accepted drafts included.
        max_drafts: 1 or more.
        place: Among the shares of the plan, from 0 on.
    """

    request: RequestState
    new_token_ids: Sequence[int]
    max_drafts: int
    place: int


@dataclass(frozen=True, slots=True)
class FinishedPass:
    """A pass that has been drawn, as a proposer sees it. Read only.

    Attributes:
        requests: The requests of the plan's shares, in their order.
        block_table: ``[requests, blocks]``, likewise; entries beyond a request's own blocks are
            arbitrary. Where the depth asks for slots (``DraftDepth.needs_slots``), it has room for
            the drawn tokens and for ``max_new_drafts`` more.
        token_ids: What was drawn or forced, by request id. A request that failed has no entry.
        hidden: A tensor ``[rows, hidden]``, the normed last states that tokens were drawn from: the
            rows of one share after those of another, one more than it had drafts. ``None`` where no
            model ran.
        forced: Requests whose next tokens leave no choice: they get no drafts.
        states: A tensor ``[tokens, hidden]``, the normed last states of all rows of the pass, for a
            proposer that ``reads_all_rows``.
    """

    plan: StepPlan
    requests: Sequence[RequestState]
    block_table: NDArray[np.int32]
    token_ids: Mapping[str, list[int]]
    hidden: Any = None  # importing torch here would bring it to the simulator
    forced: Collection[str] = ()
    states: Any = None

    def continuations(self) -> list[Continuation]:
        """The requests that may get drafts: they have drawn, and the plan allows some."""
        return [
            Continuation(request, tokens, share.max_new_drafts, index)
            for index, (share, request) in enumerate(
                zip(self.plan.scheduled.values(), self.requests)
            )
            if share.max_new_drafts
            and share.request_id not in self.forced
            and (tokens := self.token_ids.get(share.request_id))
        ]

    def last_rows(self, going: Sequence[Continuation]) -> list[int]:
        """The row of ``hidden`` that the latest token of each was drawn from."""
        first, num_rows = list[int](), 0
        for share in self.plan.scheduled.values():
            first.append(num_rows)
            num_rows += 1 + len(share.draft_token_ids) if share.samples else 0
        return [first[each.place] + len(each.new_token_ids) - 1 for each in going]


class Proposer(Protocol):
    """Guesses the tokens that follow. A wrong guess costs time and nothing else.

    The executor owns it and calls it from one thread: ``update`` with every plan, in order, before
    the pass; ``propose`` after each pass that ran. Plan, states and tables belong to the executor,
    are not changed, and are valid during the call only; a proposer keeps its own copy of what it
    needs, and drops it when a plan releases the request. What ``propose`` returns is the caller's.
    It writes keys and values only into tensors of its own, or, where it shares the target's, only
    into slots after the drawn tokens, which no request reads before they are computed again.

    Attributes:
        reads_all_rows: Whether it needs ``FinishedPass.states``.
    """

    reads_all_rows: bool

    def update(self, plan: StepPlan) -> None:
        """Take in what is new: requests, tokens, released requests, copied blocks."""
        ...

    def propose(self, step: FinishedPass) -> dict[str, list[int]]:
        """Drafts by request id, at most ``max_drafts`` each; requests may be left out."""
        ...
