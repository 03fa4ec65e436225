"""A request: what a client asked for, and how far it is."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from twostroke.core.generation_request import ResolvedRequest
from twostroke.core.logprobs import PositionLogprobs
from twostroke.core.prefix_hit import KVOffer, PrefixHit
from twostroke.core.sampling_params import HostWait, SamplingParams

# Content of a full block and of all blocks before it: a hash of the tokens. Simulated requests
# have no tokens to hash; their workload numbers equal contents instead.
BlockKey = bytes | int


class FinishReason(str, Enum):
    """Why a request ended; the values are those of the OpenAI API, plus ``abort`` and ``error``."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class RequestStatus(Enum):
    """Where a request is.

    ``LOADING``: it waits outside the queue while its prefix is loaded from a slower tier.
    """

    WAITING = "waiting"
    LOADING = "loading"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Request:
    """One answer being generated. The scheduler owns it, and lends it to the KV manager.

    A request has ``num_tokens`` tokens known so far (prompt and output) and ``num_computed_tokens``
    whose keys and values are in the cache. There are no phases: the difference is what it lacks.

    Attributes:
        spec: What was asked for; it never changes.
        arrival_time: When it joined the queue, in seconds on the engine's clock.
        leader: The sample whose prompt blocks this one shares, if it is one of several.
        sequence_number: Order of arrival; breaks ties.
        request_id: Unique in the engine; it and the six after it are taken from ``spec``.
        host_wait: Why no step after one of its steps can be planned before the result is there.
        token_ids: Prompt (``num_prompt_tokens``), then output; grows by what is sampled.
        block_hashes: Prefix-cache keys of its full blocks, as far as they have been computed.
        draft_token_ids: Guesses of its next tokens, to be verified by its next step.
        num_sent_tokens: How many of ``token_ids`` the executor has been told.
        num_assumed_tokens: Those of ``num_computed_tokens`` whose pass still runs.
        num_awaited_tokens: Tokens that this pass draws and that the next one needs: one, or none.
        num_scored_tokens: Prompt tokens whose log-probabilities have been delivered.
        num_cached_tokens: Prompt tokens that did not have to be computed, at first admission.
        prefix_hit: Explains ``num_cached_tokens``, with recurrent layers; noted at admission.
        offer: What another engine has computed of it, until it is looked for.
        num_charged_tokens: The highest position that was ever computed or found for it;
            preemption does not lower it, so that no prompt token is charged twice.
    """

    spec: ResolvedRequest
    arrival_time: float = 0.0
    leader: Request | None = None
    sequence_number: int = 0

    request_id: str = field(init=False)
    params: SamplingParams = field(init=False)
    tenant: str = field(init=False)
    num_prompt_tokens: int = field(init=False)
    max_total_tokens: int = field(init=False)
    stop_token_ids: frozenset[int] = field(init=False)
    host_wait: HostWait | None = field(init=False)

    token_ids: list[int] = field(init=False)
    block_hashes: list[BlockKey] = field(default_factory=list)
    draft_token_ids: list[int] = field(default_factory=list)
    status: RequestStatus = RequestStatus.WAITING
    num_computed_tokens: int = 0
    num_sent_tokens: int = 0
    num_assumed_tokens: int = 0
    num_awaited_tokens: int = 0
    num_cached_tokens: int = 0
    prefix_hit: PrefixHit | None = None
    offer: KVOffer | None = None
    num_charged_tokens: int = 0
    num_scored_tokens: int = 0
    num_preemptions: int = 0
    first_scheduled_time: float | None = None
    first_token_time: float | None = None
    finish_time: float | None = None
    finish_reason: FinishReason | None = None

    def __post_init__(self) -> None:
        spec = self.spec
        self.request_id, self.params, self.tenant = spec.request_id, spec.params, spec.tenant
        self.token_ids = list(spec.prompt_token_ids)
        self.num_prompt_tokens = len(self.token_ids)
        self.max_total_tokens = spec.max_total_tokens
        self.stop_token_ids = spec.stop_token_ids
        self.host_wait = spec.params.host_wait or (HostWait.ADAPTER if spec.adapter else None)
        if spec.vector is not None:
            self.host_wait = HostWait.VECTORS

    @property
    def received_time(self) -> float:
        """When its client's call arrived, from where clients count."""
        return self.arrival_time - self.spec.waited

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_answer_tokens(self) -> int:
        """Tokens of the answer so far, those that the prompt brought included."""
        return self.num_output_tokens + self.params.answer_tokens_in_prompt

    @property
    def output_token_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :]

    @property
    def num_missing_tokens(self) -> int:
        """Tokens that are not in the cache: one while decoding, many for a fresh prompt.

        They are known, or the pass that draws them runs.
        """
        return len(self.token_ids) + self.num_awaited_tokens - self.num_computed_tokens

    @property
    def prompt_computed(self) -> bool:
        return self.num_computed_tokens >= self.num_prompt_tokens

    @property
    def num_used_prompt_tokens(self) -> int:
        """Prompt tokens that were computed or found so far, each counted once."""
        counted, prompt = self.num_charged_tokens, self.num_prompt_tokens
        return counted if counted < prompt else prompt

    def count_new_prompt_tokens(self, num_tokens: int) -> int:
        """How many of the next ``num_tokens`` are prompt tokens that never ran before.

        Also notes that they run now: each prompt token is counted once, whatever is preempted.
        """
        end = self.num_computed_tokens + num_tokens
        first_new = max(self.num_charged_tokens, self.num_computed_tokens)
        self.num_charged_tokens = max(end, first_new)
        return max(0, min(end, self.num_prompt_tokens) - first_new)

    def assume(self, num_tokens: int, *, draws: bool) -> None:
        """Count what a pass computes before it ends, to plan the next; ``draws`` a token, too.

        The last token that may be drawn is never computed.
        """
        self.num_computed_tokens += num_tokens
        self.num_assumed_tokens = num_tokens
        if draws and self.num_tokens + 1 < self.max_total_tokens:
            self.num_awaited_tokens = 1

    def forget_assumed(self) -> None:
        """Take back what was assumed: the pass has ended, and tells what is so."""
        self.num_computed_tokens -= self.num_assumed_tokens
        self.num_assumed_tokens = self.num_awaited_tokens = 0

    def drop_tokens(self, count: int) -> None:
        """Take back the last ``count`` tokens: they come after the one that ended it."""
        if count:
            del self.token_ids[-count:]
        self.num_computed_tokens = min(self.num_computed_tokens, self.num_tokens)

    def take_scores(self, scores: list[PositionLogprobs], start: int) -> list[PositionLogprobs]:
        """Log-probabilities of prompt tokens ``start + 1 ..`` without those delivered before."""
        scores = scores[max(0, self.num_scored_tokens - start) :]
        self.num_scored_tokens += len(scores)
        return scores

    @property
    def reads_prefix_cache(self) -> bool:
        """Whether cached blocks can stand in for computing its prompt.

        Log-probabilities of the prompt need its logits, so until they are known every token is
        computed. A vector may need all hidden states.
        """
        if self.spec.vector is not None:
            return self.spec.vector.reads_prefix_cache
        if self.params.prompt_logprobs is None:
            return True
        return self.num_scored_tokens >= self.num_prompt_tokens - 1
