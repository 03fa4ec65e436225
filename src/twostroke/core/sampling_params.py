"""What a client may ask of the sampler: every field validated, none ignored."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from twostroke.core.errors import InvalidRequestError

MAX_SEED = 2**64 - 1
LISTS = ("stop", "bad_words", "stop_token_ids", "allowed_token_ids", "banned_token_ids")
MAX_LOGPROBS = 20
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


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    # Integers are left to the ranges: isfinite would overflow on large ones.
    return _is_int(value) or (isinstance(value, float) and math.isfinite(value))


def _is_token_list(value: object) -> bool:
    return isinstance(value, (list, tuple, frozenset, set)) and all(
        _is_int(t) and 0 <= t < 2**31 for t in value
    )


def _ascending(token_ids: Iterable[int]) -> bytearray:
    return bytearray(array("q", sorted(set(token_ids))).tobytes())


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the next token is chosen and when to stop. Names and meanings are vLLM's.

    The filters are applied in this order to the float32 logits of one position: allowed and banned
    tokens, bad words, ``min_tokens`` (masks the tokens that would stop), logit bias, repetition,
    presence and frequency penalties, temperature, top-k, top-p, min-p. Reported log-probabilities
    are those of the raw logits, before any of these.

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
        min_tokens: No stop (EOS, stop tokens, stop strings) before this many tokens.
        stop: Strings that end the answer; not part of it unless ``include_stop_str_in_output``.
        stop_token_ids: Tokens that end the answer.
        ignore_eos: Go on after EOS.
        allowed_token_ids: If given, only these tokens can be drawn.
        banned_token_ids: Tokens that are never drawn.
        bad_words: Strings that are never generated (their last token is masked where the rest has
            just been written).
        logprobs: Return the log-probability of each output token and of the this many likeliest.
        prompt_logprobs: The same for each prompt token but the first.
        skip_special_tokens: Leave special tokens out of the text.
        include_stop_str_in_output: Keep the stop string, or the stop token's text, at the end of
            the text.
        detokenize: Produce text; without it stop strings cannot be used.
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
    prompt_logprobs: int | None = None
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    detokenize: bool = True
    allowed_int64: bytearray | None = field(init=False, repr=False, compare=False)
    banned_int64: bytearray = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name, default in (
            ("stop", ()),
            ("bad_words", ()),
            ("stop_token_ids", ()),
            ("banned_token_ids", ()),
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
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(self, name)
            ok = value is None or (_is_int(value) and 0 <= value <= MAX_LOGPROBS)
            _require(ok, name, value, f"an integer from 0 to {MAX_LOGPROBS}")

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
        if self.max_tokens is not None:
            allowed = f"at most max_tokens ({self.max_tokens})"
            _require(self.min_tokens <= self.max_tokens, "min_tokens", self.min_tokens, allowed)
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        if isinstance(self.bad_words, str):
            object.__setattr__(self, "bad_words", (self.bad_words,))
        for name, max_words in (("stop", MAX_STOP_STRINGS), ("bad_words", MAX_BAD_WORDS)):
            words = getattr(self, name)
            ok = isinstance(words, (list, tuple)) and len(words) <= max_words
            ok = ok and all(
                isinstance(w, str) and 0 < len(w) <= MAX_STOP_STRING_LENGTH for w in words
            )
            _require(
                ok,
                name,
                words,
                f"at most {max_words} non-empty strings of at most"
                f" {MAX_STOP_STRING_LENGTH} characters",
            )
        length = sum(map(len, self.bad_words))
        allowed = f"at most {MAX_BAD_WORDS_LENGTH} characters together"
        _require(length <= MAX_BAD_WORDS_LENGTH, "bad_words", length, allowed)
        if self.stop and not self.detokenize:
            raise InvalidRequestError("stop strings need detokenize=True", param="stop")

    def _check_tokens(self) -> None:
        for name in ("stop_token_ids", "banned_token_ids"):
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
        ok = isinstance(self.logit_bias, Mapping) and len(self.logit_bias) <= MAX_LOGIT_BIAS
        ok = ok and all(
            _is_int(t) and t >= 0 and _is_number(b) and -100 <= b <= 100
            for t, b in self.logit_bias.items()
        )
        _require(
            ok,
            "logit_bias",
            self.logit_bias,
            f"at most {MAX_LOGIT_BIAS} token ids with values in [-100, 100]",
        )

    @property
    def edits_logits(self) -> bool:
        """Whether anything but temperature and truncation changes what is likely."""
        masks = (
            self.logit_bias
            or self.banned_token_ids
            or self.bad_words
            or self.allowed_token_ids is not None
        )
        penalties = (
            self.repetition_penalty != 1
            or self.presence_penalty != 0
            or self.frequency_penalty != 0
        )
        return bool(masks) or self.min_tokens > 0 or penalties

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raise ``InvalidRequestError`` if a token id lies outside ``[0, vocab_size)``."""
        for name in ("logit_bias", "stop_token_ids", "allowed_token_ids", "banned_token_ids"):
            if (token := max(getattr(self, name) or (-1,))) >= vocab_size:
                message = f"{name} holds token {token}, but the vocabulary has {vocab_size} tokens"
                raise InvalidRequestError(message, param=name)
