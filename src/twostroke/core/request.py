"""A request: what a client asked for, and how far it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from twostroke.core.logprobs import PositionLogprobs
from twostroke.core.pooling import Pooling
from twostroke.core.sampling_params import SamplingParams

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
    """Where a request is. ``LOADING`` and ``HELD`` requests wait outside the queue.

    ``LOADING``: its prefix is being loaded from a slower tier. ``HELD``: its keys and values are
    to be transferred from or to another engine.
    """

    WAITING = "waiting"
    LOADING = "loading"
    HELD = "held"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Request:
    """One answer being generated. The scheduler owns it; everything else only reads it.

    A request has ``num_tokens`` tokens known so far (prompt and output) and ``num_computed_tokens``
    whose keys and values are in the cache. There are no phases: the difference is what it lacks.

    Attributes:
        request_id: Unique among the requests in the engine. The samples of one call are separate
            requests.
        token_ids: Prompt, then output; grows by what is sampled.
        num_prompt_tokens: How many of them are the prompt.
        max_total_tokens: Prompt and output may not exceed this together.
        parent_id: The id the client knows (equal to ``request_id`` unless ``n > 1``).
        index: Which of the ``n`` samples this is.
        eos_token_ids: The model's end tokens (ignored under ``ignore_eos``).
        seed: Resolved 64-bit seed of this sample; with a position it decides that position's draw.
        bad_words_token_ids: ``params.bad_words`` as token sequences.
        arrival_time: When it joined the queue, in seconds on the engine's clock.
        waited: Seconds before that since its client's call arrived.
        is_part: Its client's call has other prompts, too.
        priority: Lower runs first (policy ``priority``).
        sequence_number: Order of arrival; breaks ties.
        cache_salt: Requests share cached prefixes only if their salts are equal.
        tenant: On whose behalf it runs (the name of an API key); policy ``fair`` divides the engine
            among tenants.
        labels: What the client calls its end user and the like, for step events.
        adapter_id: Which adapter's weights it runs with; empty for the model's own.
        prediction_token_ids: What the client expects the answer to be; drafts may come from it.
        pooling: The vector that it wants instead of tokens; it ends with its prompt.
        leader: The sample whose prompt blocks this one shares, if it is one of several.
        ttft_target: Seconds after its arrival by which its first token is due; none: no matter.
        stop_token_ids: All tokens that end it: the client's and, unless ``ignore_eos``, the
            model's.
        block_hashes: Prefix-cache keys of its full blocks, as far as the KV manager has computed
            them.
        draft_token_ids: Guesses of its next tokens, to be verified by its next step.
        num_sent_tokens: How many of ``token_ids`` the executor has been told.
        num_scored_tokens: Prompt tokens whose log-probabilities have been delivered (a preempted
            request's are computed again).
        num_cached_tokens: Prompt tokens that did not have to be computed, at first admission.
        num_charged_tokens: The highest position that was ever computed or found for it;
            preemption does not lower it, so that no prompt token is charged twice.
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
    adapter_id: str = ""
    prediction_token_ids: list[int] = field(default_factory=list)
    pooling: Pooling | None = None
    leader: Request | None = None
    ttft_target: float | None = None
    waited: float = 0.0
    is_part: bool = False

    stop_token_ids: frozenset[int] = field(init=False)
    block_hashes: list[BlockKey] = field(default_factory=list)
    draft_token_ids: list[int] = field(default_factory=list)
    status: RequestStatus = RequestStatus.WAITING
    num_computed_tokens: int = 0
    num_sent_tokens: int = 0
    num_cached_tokens: int = 0
    num_charged_tokens: int = 0
    num_scored_tokens: int = 0
    num_preemptions: int = 0
    first_scheduled_time: float | None = None
    first_token_time: float | None = None
    finish_time: float | None = None
    finish_reason: FinishReason | None = None

    def __post_init__(self) -> None:
        self.parent_id = self.parent_id or self.request_id
        client_stops = frozenset(self.params.stop_token_ids)
        self.stop_token_ids = (
            client_stops if self.params.ignore_eos else client_stops | self.eos_token_ids
        )

    @property
    def received_time(self) -> float:
        """When its client's call arrived, from where clients count."""
        return self.arrival_time - self.waited

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
        """Tokens known but not in the cache: one while decoding, many for a fresh prompt."""
        return len(self.token_ids) - self.num_computed_tokens

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
        if self.pooling is not None:
            return self.pooling.reads_prefix_cache
        if self.params.prompt_logprobs is None:
            return True
        return self.num_scored_tokens >= self.num_prompt_tokens - 1
