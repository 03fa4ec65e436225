"""What a client may ask of the sampler: every field validated, none ignored."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated

from twostroke.core.errors import InvalidRequestError
from twostroke.core.flags.declared import Must
from twostroke.core.sampling_fields import (
    SOME_TOKEN_IDS,
    TOKEN_IDS,
    biases,
    check_declared,
    number_above,
    number_in,
    require_field,
    whole_from,
    whole_number,
    word_list,
)
from twostroke.core.structured_outputs import StructuredOutputsParams

MAX_SEED = 2**64 - 1
LISTS = (
    "stop",
    "bad_words",
    "stop_token_ids",
    "allowed_token_ids",
    "banned_token_ids",
    "logprob_token_ids",
)
# Checked first, in this order: of several faults, the message names the first.
RANGES = (
    "n",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "logprobs",
    "prompt_logprobs",
    "speculation",
    "distribution",
    "max_tokens",
    "min_tokens",
    "answer_tokens_in_prompt",
)
MAX_LOGPROBS = 20
MAX_LOGPROB_TOKENS = 128
MAX_LISTED_TOKENS = 256
MAX_DRAFTS = 64
MAX_SAMPLES = 128
MAX_STOP_STRINGS = 16
MAX_STOP_STRING_LENGTH = 1024
MAX_LOGIT_BIAS = 1024
MIN_REPETITION_PENALTY = (
    0.01  # divided by next to nothing, a logit is infinite, and that ends the step of all requests
)
MAX_BAD_WORDS = 256
MAX_BAD_WORDS_LENGTH = (
    16_384  # characters of all together: they are encoded while the server waits, for 20 ms at most
)

FORM = Must(
    "a StructuredOutputsParams, or a dict of its fields",
    lambda form: isinstance(form, StructuredOutputsParams),
)


def _ascending(token_ids: Iterable[int]) -> bytearray:
    return bytearray(array("q", sorted(set(token_ids))).tobytes())


class HostWait(str, Enum):
    """Why the step after one is planned only when its result is there, and a GPU waits for that.

    ``FORM``: an answer's form decides what may be drawn next. ``DRAFTS``: how many are accepted
    decides where the next step begins. ``LOGPROBS``, ``VECTORS``: a request wants these, and they
    are made from what the next pass overwrites. ``PENALTIES``: they count all tokens so far.
    ``BLOCKS``: there were too few, so a request may have to yield. ``ADAPTER``: the pass asks the
    host which rows have one.
    """

    FORM = "form"
    DRAFTS = "drafts"
    LOGPROBS = "logprobs"
    PENALTIES = "penalties"
    VECTORS = "vectors"
    BLOCKS = "blocks"
    ADAPTER = "adapter"


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the next token is chosen and when to stop. Names and meanings are vLLM's.

    The filters are applied in this order to the float32 logits of one position: the answer's form,
    allowed and banned tokens, bad words, ``min_tokens`` (masks the tokens that would stop), logit
    bias, repetition, presence and frequency penalties, temperature, top-k, top-p, min-p. Reported
    log-probabilities are those of the raw logits, before any of these.

    Attributes:
        n: Number of independent answers to the same prompt.
        temperature: 0 is greedy; otherwise logits are divided by it.
        top_k: Keep the k most likely tokens; 0 or -1 keeps all.
        top_p: Keep the smallest set of most likely tokens whose probability reaches top_p (nucleus
            sampling, Holtzman et al. 2019).
        min_p: Drop tokens less likely than min_p times the likeliest (Nguyen et al. 2024).
        repetition_penalty: Divides positive and multiplies negative logits of tokens seen in prompt
            or output (Keskar et al. 2019); 1 is off.
        presence_penalty: Subtracted once from the logit of each token already in the output.
        frequency_penalty: Subtracted from a token's logit for each time it is in the output.
        logit_bias: Token id to value in [-100, 100], added to the logits.
        seed: Together with the position, decides each draw; ``None`` lets the engine choose one.
        max_tokens: Most tokens to generate; ``None`` is all that fits in the model's length.
        min_tokens: No stop (EOS, stop tokens, stop strings) before this many tokens. Only an answer
            that is complete under ``structured_outputs`` ends all the same.
        stop: Strings that end the answer; not part of it unless ``include_stop_str_in_output``.
        stop_token_ids: Tokens that end the answer.
        ignore_eos: Go on after EOS.
        allowed_token_ids: If given, only these tokens can be drawn.
        banned_token_ids: Tokens that are never drawn.
        bad_words: Strings that are never generated (their last token is masked where the rest has
            just been written).
        logprobs: Return the log-probability of each output token and of the this many likeliest.
        logprob_token_ids: Instead of the likeliest tokens, return the log-probabilities of these;
            needs ``logprobs``.
        prompt_logprobs: Return the log-probabilities of each prompt token but the first, too.
        distribution: Say how the filters shape the distribution of the first token, with this many
            of the likeliest tokens (``core/distribution.py``).
        answer_tokens_in_prompt: How many of the prompt's last tokens are the answer's first:
            penalties, bad words, ``min_tokens`` and the answer's form count them so, and the draws
            are those of an answer that goes on. Not with ``prompt_logprobs``.
        skip_special_tokens: Leave special tokens out of the text.
        include_stop_str_in_output: Keep the stop string, or the stop token's text, at the end of
            the text.
        detokenize: Produce text; without it stop strings cannot be used.
        speculation: Most drafts per step, where the engine speculates; 0 is none, ``None`` as many
            as the engine likes. The answer is the same, token by token.
        structured_outputs: The form that the answer has to have.
        thinking_token_budget: Most tokens of the thought before the answer, for models that think
            in tags or channels: then the thought's end is forced. ``None`` or -1 is no bound.
        allowed_int64: ``allowed_token_ids`` as the sampler takes them at every step: ascending,
            each once, as the bytes of int64 numbers.
        banned_int64: ``banned_token_ids`` likewise.
    """

    n: Annotated[int, whole_from(1, MAX_SAMPLES)] = 1
    temperature: Annotated[float, number_in(0, 100)] = 1.0
    top_k: Annotated[int, whole_number("-1 or 0 (all), or a positive integer", -1)] = 0
    top_p: Annotated[float, number_above(0, 1)] = 1.0
    min_p: Annotated[float, number_in(0, 1)] = 0.0
    repetition_penalty: Annotated[float, number_in(MIN_REPETITION_PENALTY, 100)] = 1.0
    presence_penalty: Annotated[float, number_in(-2, 2)] = 0.0
    frequency_penalty: Annotated[float, number_in(-2, 2)] = 0.0
    logit_bias: Annotated[Mapping[int, float], biases(MAX_LOGIT_BIAS, 100)] = field(
        default_factory=dict
    )
    seed: Annotated[int | None, whole_number("a 64-bit integer", -(2**63), MAX_SEED)] = None
    max_tokens: Annotated[int | None, whole_number("a positive integer", 1)] = 16
    min_tokens: Annotated[int, whole_number("0 or more", 0)] = 0
    stop: Annotated[Sequence[str], word_list(MAX_STOP_STRINGS, MAX_STOP_STRING_LENGTH)] = ()
    stop_token_ids: Annotated[Sequence[int], TOKEN_IDS] = ()
    ignore_eos: bool = False
    allowed_token_ids: Annotated[Sequence[int] | None, SOME_TOKEN_IDS] = None
    banned_token_ids: Annotated[Sequence[int], TOKEN_IDS] = ()
    bad_words: Annotated[Sequence[str], word_list(MAX_BAD_WORDS, MAX_STOP_STRING_LENGTH)] = ()
    logprobs: Annotated[int | None, whole_from(0, MAX_LOGPROBS)] = None
    logprob_token_ids: Annotated[Sequence[int], TOKEN_IDS] = ()
    prompt_logprobs: Annotated[int | None, whole_from(0, MAX_LOGPROBS)] = None
    distribution: Annotated[int | None, whole_from(1, MAX_LISTED_TOKENS)] = None
    answer_tokens_in_prompt: Annotated[int, whole_number("0 or more", 0)] = 0
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    detokenize: bool = True
    speculation: Annotated[int | None, whole_from(0, MAX_DRAFTS)] = None
    structured_outputs: Annotated[StructuredOutputsParams | None, FORM] = None
    thinking_token_budget: Annotated[int | None, whole_number("-1 (no bound), 0 or more", 0)] = None
    allowed_int64: bytearray | None = field(init=False, repr=False, compare=False)
    banned_int64: bytearray = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._normalise()
        check_declared(self, *RANGES)
        if self.answer_tokens_in_prompt and self.prompt_logprobs is not None:
            raise InvalidRequestError(
                "prompt_logprobs cannot be had of a prompt that holds part of the answer",
                param="prompt_logprobs",
            )
        check_declared(self, "thinking_token_budget")
        # A distribution may be asked for of each token of an answer in turn.
        if self.max_tokens is not None and self.distribution is None:
            allowed = f"at most max_tokens ({self.max_tokens})"
            require_field(
                self.min_tokens <= self.max_tokens, "min_tokens", self.min_tokens, allowed
            )
        self._check_words()
        self._check_form()
        self._check_tokens()
        self._freeze()
        check_declared(self, "logit_bias")

    def _normalise(self) -> None:
        """Let each way to write a value become one."""
        for name, default in (
            ("stop", ()),
            ("bad_words", ()),
            ("stop_token_ids", ()),
            ("banned_token_ids", ()),
            ("logprob_token_ids", ()),
            ("logit_bias", {}),
        ):
            if getattr(self, name) is None:
                object.__setattr__(self, name, default)
        if self.thinking_token_budget == -1:
            object.__setattr__(self, "thinking_token_budget", None)
        for name in ("stop", "bad_words"):
            if isinstance(word := getattr(self, name), str):
                object.__setattr__(self, name, (word,))

    def _check_words(self) -> None:
        check_declared(self, "stop", "bad_words")
        length = sum(map(len, self.bad_words))
        allowed = f"at most {MAX_BAD_WORDS_LENGTH} characters together"
        require_field(length <= MAX_BAD_WORDS_LENGTH, "bad_words", length, allowed)
        if self.stop and not self.detokenize:
            raise InvalidRequestError("stop strings need detokenize=True", param="stop")

    def _check_form(self) -> None:
        form: object = self.structured_outputs
        if isinstance(form, dict) and set(form) <= set(StructuredOutputsParams.__slots__):
            form = StructuredOutputsParams(**form)
            object.__setattr__(self, "structured_outputs", form)
        check_declared(self, "structured_outputs")

    def _check_tokens(self) -> None:
        listed = self.logprob_token_ids
        if listed and isinstance(listed, Sequence) and len(listed) > MAX_LOGPROB_TOKENS:
            raise InvalidRequestError(
                f"logprob_token_ids holds {len(listed)} tokens, at most {MAX_LOGPROB_TOKENS}",
                param="logprob_token_ids",
            )
        if listed and self.logprobs is None:
            raise InvalidRequestError(
                "logprob_token_ids needs logprobs", param="logprob_token_ids", hint="ask for both"
            )
        names = ("stop_token_ids", "banned_token_ids", "logprob_token_ids", "allowed_token_ids")
        check_declared(self, *names)

    def _freeze(self) -> None:
        """Copy lists: the engine checks an object once, so what it was given must not change."""
        for name in LISTS:
            value = getattr(self, name)
            object.__setattr__(self, name, None if value is None else tuple(value))
        allowed = None if self.allowed_token_ids is None else _ascending(self.allowed_token_ids)
        object.__setattr__(self, "allowed_int64", allowed)
        object.__setattr__(self, "banned_int64", _ascending(self.banned_token_ids))

    @property
    def edits_logits(self) -> bool:
        """Whether anything but temperature and truncation changes what is likely."""
        masks = (
            self.logit_bias
            or self.banned_token_ids
            or self.bad_words
            or self.allowed_token_ids is not None
            or self.is_constrained
        )
        penalties = (
            self.repetition_penalty != 1
            or self.presence_penalty != 0
            or self.frequency_penalty != 0
        )
        return bool(masks) or self.min_tokens > 0 or penalties

    @property
    def num_logprobs(self) -> int:
        """Log-probabilities of each token of the answer, besides its own."""
        return len(self.logprob_token_ids) or self.logprobs or 0

    @property
    def is_constrained(self) -> bool:
        """Whether each token is drawn from a mask of its own."""
        return self.structured_outputs is not None or self.thinking_token_budget is not None

    @property
    def host_wait(self) -> HostWait | None:
        """What every step of such a request is waited for; ``None``: nothing, or drafts alone."""
        if self.is_constrained:
            return HostWait.FORM
        scores = (self.logprobs, self.prompt_logprobs, self.distribution)
        if any(asked is not None for asked in scores):
            return HostWait.LOGPROBS
        repetition, presence = self.repetition_penalty != 1, self.presence_penalty != 0
        if repetition or presence or self.frequency_penalty != 0 or self.bad_words:
            return HostWait.PENALTIES
        return None

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raise ``InvalidRequestError`` if a token id lies outside ``[0, vocab_size)``."""
        for name in ("logit_bias", *LISTS[2:]):
            if (token := max(getattr(self, name) or (-1,))) >= vocab_size:
                message = f"{name} holds token {token}, but the vocabulary has {vocab_size} tokens"
                raise InvalidRequestError(message, param=name)
