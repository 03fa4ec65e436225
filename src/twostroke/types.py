"""The values that pass between scheduler, executor and engine: integers, lists and strings, no tensors.

Those that every step makes anew are ``msgspec`` structures: they cost a quarter of what a dataclass costs to make.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

import msgspec

from twostroke.errors import TwostrokeError
from twostroke.sampling_params import SamplingParams

# What a full block holds, and all before it: a hash of the tokens, or a number where a simulation knows of equal ones.
BlockKey = bytes | int


class FinishReason(str, Enum):
    """Why a request ended; the values are those of the OpenAI API, plus ``abort`` and ``error``."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class RequestStatus(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class TokenLogprob(NamedTuple):
    """Log-probability of one token at one position, and its rank there (1 is the likeliest)."""

    token_id: int
    logprob: float
    rank: int


@dataclass(slots=True)
class PositionLogprobs:
    """Log-probabilities at one position: of the token that is there, and of the likeliest ones in falling order."""

    chosen: TokenLogprob
    top: list[TokenLogprob]


@dataclass(slots=True, eq=False)
class Request:
    """One answer being generated. The scheduler owns it; executors read it and change nothing.

    A request has ``num_tokens`` tokens known so far (prompt and output) and ``num_computed_tokens`` whose keys and
    values are in the cache. There are no phases: the difference is what it lacks.

    Attributes:
        request_id: Unique among the requests in the engine. The samples of one call are separate requests.
        parent_id: The id the client knows (equal to ``request_id`` unless ``n > 1``).
        index: Which of the ``n`` samples this is.
        token_ids: Prompt, then output; grows by what is sampled.
        num_prompt_tokens: How many of them are the prompt.
        eos_token_ids: The model's end tokens (ignored under ``ignore_eos``).
        max_total_tokens: Prompt and output may not exceed this together.
        seed: Resolved 64-bit seed of this sample; with a position it decides that position's draw.
        bad_words_token_ids: ``params.bad_words`` as token sequences.
        arrival_time: Seconds on the engine's clock.
        priority: Lower runs first (policy ``priority``).
        sequence_number: Order of arrival; breaks ties.
        cache_salt: Requests share cached prefixes only if their salts are equal.
        tenant: On whose behalf it runs (the name of an API key); policy ``fair`` divides the engine among tenants.
        labels: What the client calls its end user and the like, for step events.
        leader: The sample whose prompt blocks this one shares, if it is one of several.
        stop_token_ids: All tokens that end it: the client's and, unless ``ignore_eos``, the model's.
        edits_logits: Whether it masks, biases or penalises tokens; most requests do not, and need not be asked why.
        block_hashes: Prefix-cache keys of its full blocks, as far as the KV manager has computed them.
        num_scored_tokens: Prompt tokens whose log-probabilities have been delivered (a preempted request's are computed
            again).
        num_cached_tokens: Prompt tokens that did not have to be computed, at first admission.
        num_reached_tokens: The most prompt tokens that were ever computed or found for it, or more; preemption does not
            lower it.
    """

    request_id: str
    token_ids: list[int]
    params: SamplingParams
    num_prompt_tokens: int
    max_total_tokens: int
    parent_id: str = ""
    index: int = 0
    eos_token_ids: frozenset[int] = frozenset()
    seed: int = 0
    bad_words_token_ids: tuple[tuple[int, ...], ...] = ()
    arrival_time: float = 0.0
    priority: int = 0
    sequence_number: int = 0
    cache_salt: str = ""
    tenant: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    leader: Request | None = None

    stop_token_ids: frozenset[int] = field(init=False)
    edits_logits: bool = field(init=False)
    block_hashes: list[BlockKey] = field(default_factory=list)
    status: RequestStatus = RequestStatus.WAITING
    num_computed_tokens: int = 0
    num_cached_tokens: int = 0
    num_reached_tokens: int = 0
    num_scored_tokens: int = 0
    num_preemptions: int = 0
    first_scheduled_time: float | None = None
    first_token_time: float | None = None
    finish_time: float | None = None
    finish_reason: FinishReason | None = None

    def __post_init__(self) -> None:
        self.parent_id = self.parent_id or self.request_id
        own = frozenset(self.params.stop_token_ids)
        self.stop_token_ids = own if self.params.ignore_eos else own | self.eos_token_ids
        self.edits_logits = self.params.edits_logits or bool(self.bad_words_token_ids)

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def output_token_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :]

    @property
    def num_missing_tokens(self) -> int:
        """Tokens known but not in the cache: one while decoding, many for a fresh prompt."""
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def prompt_computed(self) -> bool:
        return self.num_computed_tokens >= self.num_prompt_tokens

    @property
    def num_used_prompt_tokens(self) -> int:
        """Prompt tokens that were computed or found so far, each counted once."""
        reached, prompt = self.num_reached_tokens, self.num_prompt_tokens
        return reached if reached < prompt else prompt

    def reach(self, num_tokens: int) -> int:
        """Note that the next ``num_tokens`` go through the model; how many are prompt tokens that never did before."""
        end = self.num_computed_tokens + num_tokens
        reached, prompt = self.num_reached_tokens, self.num_prompt_tokens
        known = reached if reached > self.num_computed_tokens else self.num_computed_tokens
        self.num_reached_tokens = end if end > known else known
        new = (end if end < prompt else prompt) - known
        return new if new > 0 else 0

    def take_scores(self, scores: list[PositionLogprobs], start: int) -> list[PositionLogprobs]:
        """The log-probabilities of prompt tokens ``start + 1 ..`` less those delivered before a preemption."""
        scores = scores[max(0, self.num_scored_tokens - start) :]
        self.num_scored_tokens += len(scores)
        return scores

    @property
    def reads_prefix_cache(self) -> bool:
        """Log-probabilities of the prompt need its logits, so until they are known every token is computed."""
        return self.params.prompt_logprobs is None or self.num_scored_tokens >= self.num_prompt_tokens - 1


class ScheduledRequest(msgspec.Struct, gc=False):
    """A request's share of one step: ``num_tokens`` tokens from position ``start`` on.

    The garbage collector leaves it alone: nothing that it holds refers to it.

    Attributes:
        block_ids: The request's block table, covering at least ``start + num_tokens`` slots. It is the KV manager's
            own list: read it during the step, do not keep or change it.
        table_changed_from: First index of ``block_ids`` that differs from what the executor saw of this request in
            the last step that carried it (0 when the request is new or was preempted in between).
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

    ``POLICY``: there was room, but it is kept from the request. Newcomers go first (policy ``fair``), or the step
    preempts somebody, and then nobody enters.
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

    Where the policy itself holds everybody back (``BATCH_RUNNING``), no single request is meant and the id is empty.

    ``by`` names the request for whose sake it happened (preemption, or the sample whose prompt it waits for), and
    ``behind`` counts the waiting requests that queue behind this one and so wait for the same reason.
    """

    request_id: str
    reason: Reason
    by: str | None = None
    behind: int = 0


class StepPlan(msgspec.Struct):
    """Which tokens of which requests go through the model in one step.

    The executor first carries out ``block_copies`` (all sources are read before any destination is written), then
    runs ``scheduled`` in the given order. Valid until the scheduler's ``update`` for this plan.

    Attributes:
        released: Ids of requests that lost their blocks since the last plan (finished, aborted or preempted): an
            executor that keeps state per request drops it.
        num_tokens: Of the step's budget: those of ``scheduled``, and one for each request that the scheduler has lent.
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
        """Take back a request's share, if it has one (it is preempted in the step that was to run it)."""
        if item := self.scheduled.pop(request_id, None):
            self.num_tokens -= item.num_tokens
            own = set(item.block_ids)
            self.block_copies = [(source, target) for source, target in self.block_copies if target not in own]

    def summary(self) -> dict[str, object]:
        """The plan as plain values, equal for equal plans: what replay tests compare byte for byte."""
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
        token_ids: For each scheduled request that samples: its new tokens (one; several under speculation). Lists are
            read, never changed: several may be the same.
        logprobs: One entry for each of those tokens, where asked for.
        prompt_logprobs: For positions ``start + 1 ..`` of the prompt covered by this step, where asked for.
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


class RequestOutput(msgspec.Struct):
    """What one step added to one sample of a request. The stream of these is the answer.

    Attributes:
        request_id: The id the client knows; ``index`` tells the samples apart.
        token_ids: New tokens.
        text: New text: complete characters only, stop strings never leaked.
        logprobs: One entry per new token, where asked for.
        prompt_logprobs: For the prompt's tokens but the first, where asked for: in order, in pieces as the prompt is
            computed, the last piece with the first token or before.
        finish_reason: Set on the last output of a sample.
        stop_reason: The stop string or stop token that ended it; ``None`` for EOS.
        error: Set when ``finish_reason`` is ``ERROR``, or ``ABORT`` against the client's wish (shutdown).
        num_used_prompt_tokens: Prompt tokens computed or found in the cache by then: fewer than there are if the
            request ended before its prompt was through.
    """

    request_id: str
    index: int
    token_ids: list[int]
    num_prompt_tokens: int
    num_cached_tokens: int
    text: str = ""
    logprobs: list[PositionLogprobs] | None = None
    prompt_logprobs: list[PositionLogprobs] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    error: TwostrokeError | None = None
    num_used_prompt_tokens: int = 0

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None
