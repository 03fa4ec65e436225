"""One step: the scheduler's plan for it and what came out, with the reasons of each decision."""

from __future__ import annotations

from enum import Enum

import msgspec

from twostroke.core.errors import TwostrokeError
from twostroke.core.logprobs import PositionLogprobs
from twostroke.core.request import Request


class ScheduledRequest(msgspec.Struct, gc=False):
    """A request's share of one step: ``num_tokens`` tokens from position ``start`` on.

    The garbage collector leaves it alone: nothing that it holds refers to it.

    Attributes:
        block_ids: The request's block table, covering at least ``start + num_tokens`` slots. It is
            the KV manager's own list: read it during the step, do not keep or change it.
        table_changed_from: First index of ``block_ids`` that differs from what the executor saw of
            this request in the last step that carried it (0 when the request is new or was
            preempted in between).
    """

    request: Request
    start: int
    num_tokens: int
    block_ids: list[int]
    table_changed_from: int

    @property
    def samples(self) -> bool:
        """Whether the step reaches the last known token, so that its logits give the next one."""
        return self.start + self.num_tokens == len(self.request.token_ids)


class Reason(str, Enum):
    """Why a request got fewer tokens than it lacks in a step, or none.

    ``POLICY``: there was room, but it is kept from the request. Newcomers go first (policy
    ``fair``), or the step preempts somebody, and then nobody enters.
    """

    TOKEN_BUDGET = "token_budget"
    PREFILL_CHUNK = "prefill_chunk"
    NO_FREE_BLOCK = "no_free_block"
    MAX_NUM_SEQS = "max_num_seqs"
    POLICY = "policy"
    BATCH_RUNNING = "batch_running"
    SHARES_PROMPT = "shares_prompt"
    PREEMPTED = "preempted"


class Decision(msgspec.Struct):
    """One thing the scheduler decided against: ``request_id`` was held back for ``reason``.

    Where the policy itself holds everybody back (``BATCH_RUNNING``), no single request is meant and
    the id is empty.

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

    The executor first carries out ``block_copies`` (all sources are read before any destination is
    written), then runs ``scheduled`` in the given order. Valid until the scheduler's ``update`` for
    this plan.

    Attributes:
        released: Ids of requests that lost their blocks since the last plan (finished, aborted or
            preempted): an executor that keeps state per request drops it.
        num_tokens: Of the step's budget: those of ``scheduled``, and one for each request that the
            scheduler has lent.
    """

    step: int
    time: float
    scheduled: dict[str, ScheduledRequest] = {}
    block_copies: list[tuple[int, int]] = []
    released: list[str] = []
    decisions: list[Decision] = []
    num_tokens: int = 0

    def add(self, item: ScheduledRequest) -> None:
        self.scheduled[item.request.request_id] = item
        self.num_tokens += item.num_tokens

    def remove(self, request_id: str) -> None:
        """Take back a request's share, if it has one (it is preempted in the step that was to run
        it).
        """
        if item := self.scheduled.pop(request_id, None):
            self.num_tokens -= item.num_tokens
            own = set(item.block_ids)
            self.block_copies = [
                (source, target) for source, target in self.block_copies if target not in own
            ]

    def summary(self) -> dict[str, object]:
        """The plan as plain values, equal for equal plans: what replay tests compare byte for
        byte.
        """
        return {
            "step": self.step,
            "time": self.time,
            "scheduled": [
                [request_id, item.start, item.num_tokens, list(item.block_ids)]
                for request_id, item in self.scheduled.items()
            ],
            "block_copies": [list(pair) for pair in self.block_copies],
            "released": list(self.released),
            "decisions": [[d.request_id, d.reason.value, d.by, d.behind] for d in self.decisions],
        }


class StepResult(msgspec.Struct):
    """What one forward pass produced, keyed by request id.

    Attributes:
        token_ids: For each scheduled request that samples: its new tokens (one; several under
            speculation). Lists are read, never changed: several may be the same.
        logprobs: One entry for each of those tokens, where asked for.
        prompt_logprobs: For positions ``start + 1 ..`` of the prompt covered by this step, where
            asked for.
        errors: Requests whose computation failed; they have no entry in ``token_ids``.
        failure: Why the whole pass failed, if it did; then ``errors`` names every request in it.
        duration: Seconds of the pass, sampling included.
        timings: Seconds by component ("input", "forward", "sample", ...).
    """

    token_ids: dict[str, list[int]] = {}
    logprobs: dict[str, list[PositionLogprobs]] = {}
    prompt_logprobs: dict[str, list[PositionLogprobs]] = {}
    errors: dict[str, TwostrokeError] = {}
    failure: str | None = None
    duration: float = 0.0
    timings: dict[str, float] = {}
