"""What a client may ask of the sampler: every field validated, none ignored."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from twostroke.core.errors import InvalidRequestError
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


def _require(condition: bool, param: str, value: object, allowed: str) -> None:
    if not condition:
        raise InvalidRequestError(f"{param} must be {allowed}, got {_short(value)}", param=param)


def _short(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:  # an integer of thousands of digits
        return "a huge number"
    return text if len(text) <= 100 else text[:100] + "..."


def _check_words(name: str, words: object, max_words: int) -> None:
    allowed = (
        f"at most {max_words} non-empty strings of at most {MAX_STOP_STRING_LENGTH} characters"
    )
    ok = isinstance(words, (list, tuple)) and len(words) <= max_words
    _require(ok, name, words, allowed)
    assert isinstance(words, (list, tuple))
    for word in words:
        ok = isinstance(word, str) and 0 < len(word) <= MAX_STOP_STRING_LENGTH
        _require(ok, name, word, allowed)


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    # Integers are left to the ranges: isfinite would overflow on large ones.
    return _is_int(value) or (isinstance(value, float) and math.isfinite(value))


def _is_token_list(value: object) -> bool:
    if not isinstance(value, (list, tuple, frozenset, set)):
        return False
    # By types, of which there are few: a list may hold a whole vocabulary.
    if not all(issubclass(kind, int) and kind is not bool for kind in set(map(type, value))):
        return False
    return not value or (min(value) >= 0 and max(value) < 2**31)


def _ascending(token_ids: Iterable[int]) -> bytearray:
    return bytearray(array("q", sorted(set(token_ids))).tobytes())


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
        prompt_logprobs: The same for each prompt token but the first.
        distribution: Say how the filters shape the distribution of the first token, with this many
            of the likeliest tokens (``core/distribution.py``).
        answer_tokens_in_prompt: The prompt's last so many tokens are the answer's first ones:
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

    n: int = 1
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    max_tokens: int | None = 16
    min_tokens: int = 0
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    allowed_token_ids: Sequence[int] | None = None
    banned_token_ids: Sequence[int] = ()
    bad_words: Sequence[str] = ()
    logprobs: int | None = None
    logprob_token_ids: Sequence[int] = ()
    prompt_logprobs: int | None = None
    distribution: int | None = None
    answer_tokens_in_prompt: int = 0
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    detokenize: bool = True
    speculation: int | None = None
    structured_outputs: StructuredOutputsParams | None = None
    thinking_token_budget: int | None = None
    allowed_int64: bytearray | None = field(init=False, repr=False, compare=False)
    banned_int64: bytearray = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name, default in (
            ("stop", ()),
            ("bad_words", ()),
            ("stop_token_ids", ()),
            ("banned_token_ids", ()),
            ("logprob_token_ids", ()),
        ):
            if getattr(self, name) is None:
                object.__setattr__(self, name, default)
        if self.logit_bias is None:
            object.__setattr__(self, "logit_bias", {})
        self._check_ranges()
        self._check_lengths()
        self._check_tokens()

    def _check_ranges(self) -> None:
        _require(
            _is_int(self.n) and 1 <= self.n <= MAX_SAMPLES,
            "n",
            self.n,
            f"an integer from 1 to {MAX_SAMPLES}",
        )
        ok = _is_number(self.temperature) and 0 <= self.temperature <= 100
        _require(ok, "temperature", self.temperature, "in [0, 100]")
        _require(
            _is_int(self.top_k) and self.top_k >= -1,
            "top_k",
            self.top_k,
            "-1 or 0 (all), or a positive integer",
        )
        _require(_is_number(self.top_p) and 0 < self.top_p <= 1, "top_p", self.top_p, "in (0, 1]")
        _require(_is_number(self.min_p) and 0 <= self.min_p <= 1, "min_p", self.min_p, "in [0, 1]")
        _require(
            _is_number(self.repetition_penalty)
            and MIN_REPETITION_PENALTY <= self.repetition_penalty <= 100,
            "repetition_penalty",
            self.repetition_penalty,
            f"in [{MIN_REPETITION_PENALTY}, 100]",
        )
        for name in ("presence_penalty", "frequency_penalty"):
            value = getattr(self, name)
            _require(_is_number(value) and -2 <= value <= 2, name, value, "in [-2, 2]")
        _require(
            self.seed is None or (_is_int(self.seed) and -(2**63) <= self.seed <= MAX_SEED),
            "seed",
            self.seed,
            "a 64-bit integer",
        )
        for name, most in (
            ("logprobs", MAX_LOGPROBS),
            ("prompt_logprobs", MAX_LOGPROBS),
            ("speculation", MAX_DRAFTS),
        ):
            value = getattr(self, name)
            ok = value is None or (_is_int(value) and 0 <= value <= most)
            _require(ok, name, value, f"an integer from 0 to {most}")
        listed = self.distribution
        ok = listed is None or (_is_int(listed) and 1 <= listed <= MAX_LISTED_TOKENS)
        _require(ok, "distribution", listed, f"an integer from 1 to {MAX_LISTED_TOKENS}")

    def _check_lengths(self) -> None:
        _require(
            self.max_tokens is None or (_is_int(self.max_tokens) and self.max_tokens >= 1),
            "max_tokens",
            self.max_tokens,
            "a positive integer",
        )
        _require(
            _is_int(self.min_tokens) and self.min_tokens >= 0,
            "min_tokens",
            self.min_tokens,
            "0 or more",
        )
        count = self.answer_tokens_in_prompt
        _require(_is_int(count) and count >= 0, "answer_tokens_in_prompt", count, "0 or more")
        if count and self.prompt_logprobs is not None:
            raise InvalidRequestError(
                "prompt_logprobs cannot be had of a prompt that holds part of the answer",
                param="prompt_logprobs",
            )
        if self.thinking_token_budget == -1:
            object.__setattr__(self, "thinking_token_budget", None)
        budget = self.thinking_token_budget
        ok = budget is None or (_is_int(budget) and budget >= 0)
        _require(ok, "thinking_token_budget", budget, "-1 (no bound), 0 or more")
        # A distribution may be asked for of each token of an answer in turn.
        if self.max_tokens is not None and self.distribution is None:
            allowed = f"at most max_tokens ({self.max_tokens})"
            _require(self.min_tokens <= self.max_tokens, "min_tokens", self.min_tokens, allowed)
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        if isinstance(self.bad_words, str):
            object.__setattr__(self, "bad_words", (self.bad_words,))
        for name, max_words in (("stop", MAX_STOP_STRINGS), ("bad_words", MAX_BAD_WORDS)):
            _check_words(name, getattr(self, name), max_words)
        length = sum(map(len, self.bad_words))
        allowed = f"at most {MAX_BAD_WORDS_LENGTH} characters together"
        _require(length <= MAX_BAD_WORDS_LENGTH, "bad_words", length, allowed)
        if self.stop and not self.detokenize:
            raise InvalidRequestError("stop strings need detokenize=True", param="stop")
        self._check_form()

    def _check_form(self) -> None:
        form: object = self.structured_outputs
        if isinstance(form, dict) and set(form) <= set(StructuredOutputsParams.__slots__):
            form = StructuredOutputsParams(**form)
            object.__setattr__(self, "structured_outputs", form)
        ok = form is None or isinstance(form, StructuredOutputsParams)
        _require(
            ok, "structured_outputs", form, "a StructuredOutputsParams, or a dict of its fields"
        )

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
        for name in ("stop_token_ids", "banned_token_ids", "logprob_token_ids"):
            _require(
                _is_token_list(getattr(self, name)),
                name,
                getattr(self, name),
                "a list of token ids",
            )
        if self.allowed_token_ids is not None:
            ok = _is_token_list(self.allowed_token_ids) and len(self.allowed_token_ids) > 0
            _require(
                ok, "allowed_token_ids", self.allowed_token_ids, "a non-empty list of token ids"
            )
        # The engine checks an object once, so what it was given must not change under it.
        for name in LISTS:
            value = getattr(self, name)
            object.__setattr__(self, name, None if value is None else tuple(value))
        allowed = None if self.allowed_token_ids is None else _ascending(self.allowed_token_ids)
        object.__setattr__(self, "allowed_int64", allowed)
        object.__setattr__(self, "banned_int64", _ascending(self.banned_token_ids))
        biases = f"at most {MAX_LOGIT_BIAS} token ids with values in [-100, 100]"
        ok = isinstance(self.logit_bias, Mapping) and len(self.logit_bias) <= MAX_LOGIT_BIAS
        _require(ok, "logit_bias", self.logit_bias, biases)
        for token, bias in self.logit_bias.items():
            ok = _is_int(token) and token >= 0 and _is_number(bias) and -100 <= bias <= 100
            _require(ok, "logit_bias", {token: bias}, biases)

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
    def greedy(self) -> bool:
        return self.temperature == 0

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raise ``InvalidRequestError`` if a token id lies outside ``[0, vocab_size)``."""
        for name in ("logit_bias", *LISTS[2:]):
            if (token := max(getattr(self, name) or (-1,))) >= vocab_size:
                message = f"{name} holds token {token}, but the vocabulary has {vocab_size} tokens"
                raise InvalidRequestError(message, param=name)
