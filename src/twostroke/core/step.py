"""One step as two messages: the scheduler's plan for it, and what the executor made of it.

Both are plain data and have a wire form (msgspec), so that an executor may live in
another process. An executor keeps what it needs of each request between steps; a plan
says what is new: requests in ``new_requests``, tokens and blocks as the part that changed.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

import msgspec

from twostroke.core.distribution import Distribution
from twostroke.core.errors import ErrorMessage
from twostroke.core.generation_request import ResolvedRequest
from twostroke.core.kv_tier_config import BlockTransfer, TierChange
from twostroke.core.logprobs import PositionLogprobs
from twostroke.core.request import Request
from twostroke.core.sampling_params import HostWait, SamplingParams
from twostroke.core.speculation_config import DepthChange


class NewRequest(msgspec.Struct, frozen=True):
    """All that an executor must know of a request; sent with its first step after each admission.

    Attributes:
        output_token_ids: What it has drawn so far: after a preemption.
    """

    spec: ResolvedRequest
    output_token_ids: list[int] = []

    @classmethod
    def of(cls, request: Request) -> NewRequest:
        return cls(request.spec, request.output_token_ids)

    @property
    def request_id(self) -> str:
        return self.spec.request_id

    @property
    def params(self) -> SamplingParams:
        return self.spec.params

    @property
    def token_ids(self) -> list[int]:
        """All tokens known so far, a list of the caller's own."""
        return [*self.spec.prompt_token_ids, *self.output_token_ids]

    @property
    def answer_start(self) -> int:
        """Where the answer begins in ``token_ids``; the prompt may have brought its beginning."""
        return len(self.spec.prompt_token_ids) - self.spec.params.answer_tokens_in_prompt


NO_SLOT = -1  # in place of a slot: there is none


class StateChange(msgspec.Struct, frozen=True, gc=False):
    """What a share does with the slots of recurrent state (``kv_cache/state_slots.py``).

    Attributes:
        live: The request's slot: read before its tokens are computed, written after them.
        start: Where ``live`` is copied from first; ``NO_SLOT``: zeros; ``None``: it is as it is.
        checkpoints: Copies to make, in order: after how many tokens of the share, into which slot.
    """

    live: int
    start: int | None = None
    checkpoints: list[tuple[int, int]] = []


class ScheduledRequest(msgspec.Struct, gc=False):
    """A request's share of one step: ``num_tokens`` tokens from position ``start`` on.

    Attributes:
        num_tokens: Known tokens first, then ``draft_token_ids``.
        samples: Whether the step reaches the last known token and its logits give the next one.
        num_blocks: Blocks of its table that cover ``start + num_tokens`` slots.
        first_new_block: Where ``new_block_ids`` go in the table. What was sent before stays.
        new_block_ids: The part of the table that the executor does not know. Read only.
        new_token_ids: Tokens that became known since the last plan that carried the request.
        draft_token_ids: Guesses of the tokens after the last known one. They are computed too,
            and accepted as far as each equals the token that is drawn at its position.
        max_new_drafts: How many drafts of the tokens after the drawn ones the executor may make.
        states: Changes to the slots of recurrent state, for models that have it.
    """

    request_id: str
    start: int
    num_tokens: int
    samples: bool
    num_blocks: int = 0
    first_new_block: int = 0
    new_block_ids: list[int] = []
    new_token_ids: list[int] = []
    draft_token_ids: list[int] = []
    max_new_drafts: int = 0
    states: StateChange | None = None


class Reason(str, Enum):
    """Why a request got fewer tokens than it lacks in a step, or none.

    ``POLICY``: there was room, but the policy keeps it from the request: a boosted tenant goes
    first (policy ``fair``), or the step preempts, and then it admits no request.
    ``TPOT_TARGET``: the step's budget is spent, which is smaller for ``--tpot-target``.
    ``LOADING``: see ``RequestStatus``.
    """

    TOKEN_BUDGET = "token_budget"
    TPOT_TARGET = "tpot_target"
    PREFILL_CHUNK = "prefill_chunk"
    NO_FREE_BLOCK = "no_free_block"
    MAX_NUM_SEQS = "max_num_seqs"
    POLICY = "policy"
    BATCH_RUNNING = "batch_running"
    SHARES_PROMPT = "shares_prompt"
    LOADING = "loading"
    PREEMPTED = "preempted"


class Decision(msgspec.Struct):
    """One thing the scheduler decided against: ``request_id`` was held back for ``reason``.

    Where the policy itself holds all requests back (``BATCH_RUNNING``), the id is empty.

    ``by`` names the request for whose sake it happened (preemption, or the sample whose prompt it
    waits for), and ``behind`` counts the waiting requests that queue behind this one and so wait
    for the same reason.
    """

    request_id: str
    reason: Reason
    by: str | None = None
    behind: int = 0


class StepPlan(msgspec.Struct):
    """Which tokens of which requests go through the model in one step.

    The executor drops the state of ``released`` requests and takes in ``new_requests``. It reads
    the blocks of ``block_saves`` before it writes any block: they may be given to another request
    in this very step. It carries out ``block_copies`` (all sources are read before any destination
    is written), drops ``block_drops`` from their tiers, begins ``block_loads``, and runs
    ``scheduled`` in the given order. Valid until the scheduler's ``update`` for this plan.

    Attributes:
        step: Number of the step, from 0 on.
        time: When it was planned, in seconds on the engine's clock.
        released: Ids of requests that lost their blocks since the last plan (finished, aborted or
            preempted).
        block_drops: What tiers need not keep any more; ``removed`` names it.
        decisions: What the scheduler decided against; executors need not read it.
        depth_changes: How far ahead requests are guessed, where that changes; nor this.
        num_tokens: Tokens of ``scheduled`` together.
        token_budget: Most tokens that the step might have carried; executors need not read it.
        is_ahead: Whether it was made before the result of the step before was there.
        host_wait: Why the next one may not be, on an executor that runs ahead.
    """

    step: int
    time: float
    scheduled: dict[str, ScheduledRequest] = {}
    new_requests: dict[str, NewRequest] = {}
    block_copies: list[tuple[int, int]] = []
    block_loads: list[BlockTransfer] = []
    block_saves: list[BlockTransfer] = []
    block_drops: list[TierChange] = []
    released: list[str] = []
    decisions: list[Decision] = []
    depth_changes: list[DepthChange] = []
    num_tokens: int = 0
    token_budget: int = 0
    is_ahead: bool = False
    host_wait: HostWait | None = None

    def add(self, share: ScheduledRequest) -> None:
        self.scheduled[share.request_id] = share
        self.num_tokens += share.num_tokens

    def keep(self, requests: Iterable[Request]) -> None:
        """Take out all other requests' shares; ``num_tokens`` stays, since they were computed."""
        self.scheduled = {r.request_id: self.scheduled[r.request_id] for r in requests}

    def remove(self, request_id: str, block_ids: list[int]) -> None:
        """Take back a request's share, if it has one, and what was to fill its blocks.

        A request can be preempted in the very step that was to run it.
        """
        self.new_requests.pop(request_id, None)
        if share := self.scheduled.pop(request_id, None):
            self.num_tokens -= share.num_tokens
            targets = set(block_ids)
            self.block_copies = [pair for pair in self.block_copies if pair[1] not in targets]
            loads = self.block_loads
            self.block_loads = [load for load in loads if load.request_id != request_id]


class StepResult(msgspec.Struct):
    """What one forward pass produced, keyed by request id.

    Attributes:
        token_ids: For each scheduled request that samples: its new tokens. One, or with drafts one
            more than were accepted; then those that the answer's form leaves no choice about.
            Lists are read, never changed: several may be the same.
        num_accepted_drafts: For requests with drafts: how many of them were accepted.
        draft_token_ids: Guesses for the next step, where there are any.
        repeated: Requests with drafts whose numbers went wrong, be it because of these; and those
            the form of whose answer takes long to look up. Nothing of their shares counts as
            computed: the next step has to run them, without these drafts.
        logprobs: One entry for each of those tokens, where asked for.
        prompt_logprobs: For positions ``start + 1 ..`` of the prompt covered by this step, where
            asked for.
        distributions: For each request that asked for one and drew its first token.
        vectors: For each scheduled request that wants one and whose prompt is computed: packed.
        loaded: Requests whose ``block_loads`` of this or an earlier step have arrived.
        failed_loads: Requests whose loads will not arrive; what they lack is computed instead.
        tier_changes: What tiers have got and lost; at most one entry for each tier.
        errors: Requests whose computation failed; they have no entry in ``token_ids``.
        failure: Why the whole pass failed, if it did; then ``errors`` names every request in it.
        duration: Seconds of the pass, sampling included.
        timings: Seconds by component ("input", "forward", "sample", ...).
    """

    token_ids: dict[str, list[int]] = {}
    num_accepted_drafts: dict[str, int] = {}
    draft_token_ids: dict[str, list[int]] = {}
    repeated: list[str] = []
    logprobs: dict[str, list[PositionLogprobs]] = {}
    prompt_logprobs: dict[str, list[PositionLogprobs]] = {}
    distributions: dict[str, Distribution] = {}
    vectors: dict[str, bytes] = {}
    loaded: list[str] = []
    failed_loads: list[str] = []
    tier_changes: list[TierChange] = []
    errors: dict[str, ErrorMessage] = {}
    failure: str | None = None
    duration: float = 0.0
    timings: dict[str, float] = {}
