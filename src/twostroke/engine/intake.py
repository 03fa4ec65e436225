"""From what a client asks to what the scheduler runs: validation, seeds, one request per sample."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from twostroke.core.errors import InvalidRequestError, RequestTooLargeError
from twostroke.core.request import Request
from twostroke.core.sampling_params import SamplingParams
from twostroke.engine.clients.base import GenerationRequest
from twostroke.engine.executor import ExecutorInfo
from twostroke.sampling.random import derive_seed
from twostroke.text.tokenizer import Tokenizer

TokenSequences = tuple[tuple[int, ...], ...]


class _Checked(NamedTuple):
    """What follows from parameters alone; ``others`` are those of all samples but the first."""

    params: SamplingParams
    others: SamplingParams
    bad_words: TokenSequences


class Intake:
    """Turns generation requests into requests. Touches no engine state: it may run beside the
    engine's thread.

    Args:
        seed: Seeds those requests that bring no seed, in order of arrival; ``None`` seeds them from
            the system.
    """

    def __init__(self, info: ExecutorInfo, tokenizer: Tokenizer | None, seed: int | None) -> None:
        self._info = info
        self._tokenizer = tokenizer
        self._seed = seed
        self._num_seeded = 0
        # The last one: an HTTP call has the same parameters for each of its prompts, and checking
        # can take 20 ms.
        self._checked: _Checked | None = None
        # Of the last call that had any: many a client sends the same ones with every call.
        self._bad_words: tuple[Sequence[str], TokenSequences] = ((), ())
        # Chat models often name the end of a turn in their tokenizer alone.
        own_eos = tokenizer.eos_token_id if tokenizer else None
        self._eos_token_ids = info.eos_token_ids | (frozenset() if own_eos is None else {own_eos})

    def prepare(self, call: GenerationRequest, now: float) -> list[Request]:
        """One request per sample, the first of which leads: the others share its prompt's blocks.

        Raises:
            InvalidRequestError: An empty prompt, a token outside the vocabulary, a field that
                cannot work here.
            RequestTooLargeError: The prompt leaves no room for an answer, or asks for more than the
                context holds.
        """
        params = call.params
        self._check_types(call)
        max_total_tokens = self._max_total_tokens(call)
        if not call.prompt_token_ids:
            raise InvalidRequestError(
                "the prompt is empty", param="prompt", hint="send at least one token"
            )
        vocab = self._info.vocab_size
        if not 0 <= min(call.prompt_token_ids) <= max(call.prompt_token_ids) < vocab:
            raise InvalidRequestError(
                f"the prompt holds token ids outside [0, {vocab})", param="prompt"
            )
        if self._tokenizer is None and (params.detokenize or params.bad_words):
            raise InvalidRequestError(
                "this engine has no tokenizer; set detokenize=False", param="detokenize"
            )
        checked = self._check(params)
        seed = self._next_seed() if params.seed is None else params.seed % 2**64
        requests: list[Request] = []
        for index in range(params.n):
            request = Request(
                request_id=call.request_id if params.n == 1 else f"{call.request_id}#{index}",
                parent_id=call.request_id,
                index=index,
                token_ids=list(call.prompt_token_ids),
                num_prompt_tokens=len(call.prompt_token_ids),
                params=params if index == 0 else checked.others,
                max_total_tokens=max_total_tokens,
                eos_token_ids=self._eos_token_ids,
                seed=seed if index == 0 else derive_seed(seed, index),
                bad_words_token_ids=checked.bad_words,
                arrival_time=now,
                priority=call.priority,
                cache_salt=call.cache_salt,
                tenant=call.tenant,
                labels=call.labels,
                leader=requests[0] if requests else None,
            )
            requests.append(request)
        return requests

    @staticmethod
    def _check_types(call: GenerationRequest) -> None:
        """What HTTP has checked already, and Python callers may get wrong."""
        if not isinstance(call.request_id, str) or not call.request_id or "#" in call.request_id:
            message = f"request_id must be a non-empty string without '#', got {call.request_id!r}"
            raise InvalidRequestError(
                message, param="request_id", hint="'#' tells the samples of a request apart"
            )
        if type(call.priority) is not int:
            raise InvalidRequestError(
                f"priority must be an integer, got {call.priority!r}", param="priority"
            )
        if not isinstance(call.cache_salt, str):
            raise InvalidRequestError(
                f"cache_salt must be a string, got {call.cache_salt!r}", param="cache_salt"
            )
        if not isinstance(call.tenant, str):
            raise InvalidRequestError(
                f"tenant must be a string, got {call.tenant!r}", param="tenant"
            )
        if not all(type(token) is int for token in call.prompt_token_ids):
            raise InvalidRequestError("the prompt's token ids must be integers", param="prompt")

    def _max_total_tokens(self, call: GenerationRequest) -> int:
        prompt, most = len(call.prompt_token_ids), self._info.max_model_len
        held = self._info.num_blocks * self._info.block_size
        wanted = call.params.max_tokens
        if prompt >= most or (wanted is not None and prompt + wanted > most):
            asked = "" if wanted is None else f" and {wanted} for the answer"
            raise RequestTooLargeError(
                f"the model's context holds {most} tokens, but the request has {prompt} in the"
                f" prompt{asked}",
                needed=prompt + (wanted or 1),
                available=most,
                param="prompt" if prompt >= most else "max_tokens",
                hint="shorten the prompt or lower max_tokens",
            )
        return min(most, max(held, prompt + 1)) if wanted is None else prompt + wanted

    def _check(self, params: SamplingParams) -> _Checked:
        last = self._checked
        if last is not None and last.params is params:
            return last
        params.check_vocabulary(self._info.vocab_size)
        # The leader reports the prompt's log-probabilities; computing them again would tell nothing
        # new.
        others = params if params.prompt_logprobs is None else replace(params, prompt_logprobs=None)
        self._checked = checked = _Checked(params, others, self._encode_bad_words(params.bad_words))
        return checked

    def _encode_bad_words(self, words: Sequence[str]) -> TokenSequences:
        """Each word as token sequences, as written, at the start of a text, and after a space: all
        of them spell it.
        """
        if self._tokenizer is None or not words:
            return ()
        last, known = self._bad_words
        if last == words:
            return known
        spellings: list[str] = []
        for word in words:
            bare = word.lstrip(" ")
            spellings += [word, bare, f" {bare}"] if bare else [word]
        encoded = self._tokenizer.encode_all(spellings)
        sequences = tuple(dict.fromkeys(tuple(tokens) for tokens in encoded if tokens))
        self._bad_words = words, sequences  # in one assignment: other threads may be here
        return sequences

    def _next_seed(self) -> int:
        if self._seed is None:
            return secrets.randbits(64)
        self._num_seeded += 1
        return derive_seed(self._seed, self._num_seeded)
