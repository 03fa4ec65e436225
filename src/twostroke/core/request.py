"""A request: what a client asked for, and how far it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from twostroke.core.logprobs import PositionLogprobs
from twostroke.core.sampling_params import SamplingParams

# What a full block holds, and all before it: a hash of the tokens, or a number where a simulation
# knows of equal ones.
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


@dataclass(slots=True, eq=False)
class Request:
    """One answer being generated. The scheduler owns it; executors read it and change nothing.

    A request has ``num_tokens`` tokens known so far (prompt and output) and ``num_computed_tokens``
    whose keys and values are in the cache. There are no phases: the difference is what it lacks.

    Attributes:
        request_id: Unique among the requests in the engine. The samples of one call are separate
            requests.
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
        tenant: On whose behalf it runs (the name of an API key); policy ``fair`` divides the engine
            among tenants.
        labels: What the client calls its end user and the like, for step events.
        leader: The sample whose prompt blocks this one shares, if it is one of several.
        stop_token_ids: All tokens that end it: the client's and, unless ``ignore_eos``, the
            model's.
        edits_logits: Whether it masks, biases or penalises tokens; most requests do not, and need
            not be asked why.
        block_hashes: Prefix-cache keys of its full blocks, as far as the KV manager has computed
            them.
        num_scored_tokens: Prompt tokens whose log-probabilities have been delivered (a preempted
            request's are computed again).
        num_cached_tokens: Prompt tokens that did not have to be computed, at first admission.
        num_reached_tokens: The most prompt tokens that were ever computed or found for it, or more;
            preemption does not lower it.
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
        """Note that the next ``num_tokens`` go through the model; how many are prompt tokens that
        never did before.
        """
        end = self.num_computed_tokens + num_tokens
        reached, prompt = self.num_reached_tokens, self.num_prompt_tokens
        known = reached if reached > self.num_computed_tokens else self.num_computed_tokens
        self.num_reached_tokens = end if end > known else known
        new = (end if end < prompt else prompt) - known
        return new if new > 0 else 0

    def take_scores(self, scores: list[PositionLogprobs], start: int) -> list[PositionLogprobs]:
        """The log-probabilities of prompt tokens ``start + 1 ..`` less those delivered before a
        preemption.
        """
        scores = scores[max(0, self.num_scored_tokens - start) :]
        self.num_scored_tokens += len(scores)
        return scores

    @property
    def reads_prefix_cache(self) -> bool:
        """Log-probabilities of the prompt need its logits, so until they are known every token is
        computed.
        """
        return (
            self.params.prompt_logprobs is None
            or self.num_scored_tokens >= self.num_prompt_tokens - 1
        )
