"""The client's side of a call: validation, seeds, and the message that the engine gets."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from twostroke.constraints.compiler import GrammarCompiler
from twostroke.core.errors import InvalidRequestError, RequestTooLargeError, context_overflow
from twostroke.core.generation_request import GenerationRequest, ResolvedRequest
from twostroke.core.pooling import Pooling, resolve_pooling
from twostroke.core.sampling_params import SamplingParams
from twostroke.engine.adapters.registry import Adapters
from twostroke.engine.executor import ExecutorInfo
from twostroke.engine.messages import AddRequest
from twostroke.kv_cache.check_fits import check_fits
from twostroke.sampling.random import derive_seed
from twostroke.scheduling.admission.ttft_targets import TTFTTargets
from twostroke.text.tokenizer import Tokenizer

TokenSequences = tuple[tuple[int, ...], ...]


class _CheckedParams(NamedTuple):
    """What follows from parameters alone."""

    params: SamplingParams
    other_params: SamplingParams
    bad_words: TokenSequences


class Intake:
    """Turns calls into messages for an engine.

    It needs only what the engine says of itself, so it may run on another thread than the engine,
    or in another process.

    Args:
        info: The engine's model and KV cache.
        tokenizer: Needed for ``detokenize`` and ``bad_words``.
        seed: Seeds those requests that bring no seed, in order of arrival; ``None`` seeds them from
            the system. ``Seeds`` may be shared with others.
        grammars: Checks what form answers are to have; without it, none can be asked for.
        ttft_targets: Those of requests that bring none of their own; by default there are none.
        adapters: The LoRA adapters that calls may name; by default none.
    """

    def __init__(
        self,
        info: ExecutorInfo,
        tokenizer: Tokenizer | None,
        seed: int | Seeds | None,
        grammars: GrammarCompiler | None = None,
        ttft_targets: TTFTTargets | None = None,
        adapters: Adapters | None = None,
    ) -> None:
        self._adapters = adapters or Adapters()
        self._ttft_targets = ttft_targets or TTFTTargets((), "")
        self._grammars = grammars
        self._info = info
        self._tokenizer = tokenizer
        self._seeds = seed if isinstance(seed, Seeds) else Seeds(seed)
        # Of the last call: all prompts of an HTTP call have the same parameters, and checking
        # them can take 20 ms. Bad words are compared: clients often send the same with each call.
        self._checked: _CheckedParams | None = None
        self._bad_words: tuple[Sequence[str], TokenSequences] = ((), ())
        # Chat models often name the end of a turn in their tokenizer alone.
        tokenizer_eos = tokenizer.eos_token_id if tokenizer else None
        self._eos_token_ids = info.eos_token_ids | (
            frozenset() if tokenizer_eos is None else {tokenizer_eos}
        )

    def prepare(self, call: GenerationRequest, now: float) -> AddRequest:
        """Validate a call that came at ``now``, in seconds on the engine's clock.

        Raises:
            InvalidRequestError: An empty prompt, a token outside the vocabulary, a field that
                cannot work here.
            RequestTooLargeError: The prompt leaves no room for an answer, or asks for more than the
                context or the KV cache holds.
        """
        params = call.params
        self._check_types(call)
        vector = self._resolve_vector(call)
        max_total_tokens = self._max_total_tokens(call)
        self._check_tokens(call)
        if self._tokenizer is None and (params.detokenize or params.bad_words):
            raise InvalidRequestError(
                "this engine has no tokenizer; set detokenize=False", param="detokenize"
            )
        adapter = self._adapters.identity_of(call.adapter)
        checked = self._check(params)
        # Drawn even if the request is then refused: what others draw does not depend on the cache.
        seed = self._seeds.draw() if params.seed is None else params.seed % 2**64
        check_fits(
            max_total_tokens, self._info.num_blocks, self._info.block_size, self._info.kv_groups
        )
        request = ResolvedRequest.of(
            call,
            prompt_token_ids=list(call.prompt_token_ids),  # the caller may change its own
            prediction_token_ids=list(call.prediction_token_ids),
            labels=dict(call.labels),
            adapter=adapter,
            max_total_tokens=max_total_tokens,
            seed=seed,
            eos_token_ids=self._eos_token_ids,
            bad_words_token_ids=checked.bad_words,
            vector=vector,
            ttft_target=self._ttft_targets.of(call.tenant, call.ttft_target),
            waited=max(0.0, call.waited),
        )
        return AddRequest(request, checked.other_params, now)

    def _check_tokens(self, call: GenerationRequest) -> None:
        if not call.prompt_token_ids:
            raise InvalidRequestError(
                "the prompt is empty", param="prompt", hint="send at least one token"
            )
        if call.params.answer_tokens_in_prompt >= len(call.prompt_token_ids):
            raise InvalidRequestError(
                "all tokens of the prompt are the answer's",
                param="answer_tokens_in_prompt",
                hint="send at least one token before the answer",
            )
        vocab = self._info.vocab_size
        lowest, highest = min(call.prompt_token_ids), max(call.prompt_token_ids)
        if not 0 <= lowest <= highest < vocab:
            token = lowest if lowest < 0 else highest
            raise InvalidRequestError(
                f"the prompt holds token {token}, but the vocabulary has {vocab} tokens",
                param="prompt",
            )
        prediction = call.prediction_token_ids
        if prediction and not 0 <= min(prediction) <= max(prediction) < vocab:
            raise InvalidRequestError(
                f"the prediction holds token ids outside [0, {vocab})", param="prediction"
            )

    def _resolve_vector(self, call: GenerationRequest) -> Pooling | None:
        """What is to be made of the prompt, or ``None`` if tokens are."""
        if call.pooling is not None:
            if call.adapter:
                raise InvalidRequestError(
                    "adapters write text, they give no vectors", param="model"
                )
            if call.params.n != 1:
                raise InvalidRequestError("a prompt has one vector: n must be 1", param="n")
            num_tokens = len(call.prompt_token_ids)
            ids, vocab = call.pooling.score_token_ids, self._info.vocab_size
            if ids is not None and not all(type(i) is int and 0 <= i < vocab for i in ids):
                raise InvalidRequestError(
                    f"score_token_ids are {ids}, but the vocabulary has {vocab} tokens",
                    param="score_token_ids",
                )
            return resolve_pooling(call.pooling, self._info.pooling, num_tokens)
        if not self._info.generates:
            raise InvalidRequestError(
                "this model gives vectors and scores, it does not generate text",
                hint="ask /v1/embeddings, /v1/score or /v1/rerank",
            )
        return None

    @staticmethod
    def _check_types(call: GenerationRequest) -> None:
        """What HTTP has checked already, and Python callers may get wrong."""
        if not isinstance(call.request_id, str) or not call.request_id or "#" in call.request_id:
            message = f"request_id must be a non-empty string without '#', got {call.request_id!r}"
            raise InvalidRequestError(
                message, param="request_id", hint="'#' tells the samples of a request apart"
            )
        if type(call.priority) is not int or not -(2**63) <= call.priority < 2**63:
            raise InvalidRequestError(
                f"priority must be an integer of 64 bits, got {call.priority!r}", param="priority"
            )
        target = call.ttft_target
        if target is not None and not (type(target) in (int, float) and 0 < target < 1e6):
            raise InvalidRequestError(
                f"ttft_target must be above 0 and below 1000000 seconds, got {target!r}",
                param="deadline_ms",
            )
        if not isinstance(call.cache_salt, str):
            raise InvalidRequestError(
                f"cache_salt must be a string, got {call.cache_salt!r}", param="cache_salt"
            )
        if not isinstance(call.tenant, str):
            raise InvalidRequestError(
                f"tenant must be a string, got {call.tenant!r}", param="tenant"
            )
        if set(map(type, call.prompt_token_ids)) - {int}:
            raise InvalidRequestError("the prompt's token ids must be integers", param="prompt")
        if not all(type(token) is int for token in call.prediction_token_ids):
            message = "the prediction's token ids must be integers"
            raise InvalidRequestError(message, param="prediction")

    def _max_total_tokens(self, call: GenerationRequest) -> int:
        num_prompt, context = len(call.prompt_token_ids), self._info.max_model_len
        if call.pooling is not None and num_prompt <= context:
            return num_prompt
        max_tokens = call.params.max_tokens if call.pooling is None else None
        limit = self._info.max_new_tokens
        if max_tokens is not None and limit is not None:
            max_tokens = min(max_tokens, limit)
        if num_prompt >= context or (max_tokens is not None and num_prompt + max_tokens > context):
            however = f"the prompt has {num_prompt} tokens"
            if max_tokens is not None:
                however = (
                    f"you requested {num_prompt + max_tokens} tokens ({num_prompt} in the prompt,"
                    f" {max_tokens} in the completion)"
                )
            raise RequestTooLargeError(
                context_overflow(context, however),
                needed=num_prompt + (max_tokens or 1),
                available=context,
                param="prompt" if num_prompt >= context else "max_tokens",
                hint="shorten the prompt or lower max_tokens",
            )
        if max_tokens is not None:
            return num_prompt + max_tokens
        longest = min(context, max(self._info.longest_request, num_prompt + 1))
        return longest if limit is None else min(longest, num_prompt + limit)

    def _check(self, params: SamplingParams) -> _CheckedParams:
        last = self._checked
        if last is not None and last.params is params:
            return last
        params.check_vocabulary(self._info.vocab_size)
        self._check_form(params)
        other_params = params
        if params.prompt_logprobs is not None:
            other_params = replace(params, prompt_logprobs=None)
        bad_words = self._encode_bad_words(params.bad_words)
        self._checked = checked = _CheckedParams(params, other_params, bad_words)
        return checked

    def _check_form(self, params: SamplingParams) -> None:
        """Compile what form the answer is to have; a server has done so on another thread."""
        wanted = params.structured_outputs
        if not params.is_constrained:
            return
        if self._grammars is None:
            param = "structured_outputs" if wanted is not None else "thinking_token_budget"
            raise InvalidRequestError(
                f"this engine has no tokenizer, which {param} needs", param=param
            )
        if wanted is None:
            return
        if not self._grammars.end_token_ids(self._eos_token_ids, params.stop_token_ids):
            raise InvalidRequestError(
                "this model has no end token, which structured outputs need",
                param="structured_outputs",
                hint="give a special token as stop_token_ids",
            )
        self._grammars.compile(wanted)

    def _encode_bad_words(self, words: Sequence[str]) -> TokenSequences:
        """Each word as all token sequences that spell it: as written, and after a space."""
        if self._tokenizer is None or not words:
            return ()
        last_words, last_sequences = self._bad_words
        if last_words == words:
            return last_sequences
        spellings: list[str] = []
        for word in words:
            bare = word.lstrip(" ")
            spellings += [word, bare, f" {bare}"] if bare else [word]
        encoded = self._tokenizer.encode_all(spellings)
        sequences = tuple(dict.fromkeys(tuple(tokens) for tokens in encoded if tokens))
        self._bad_words = words, sequences  # in one assignment: other threads may be here
        return sequences


class Seeds:
    """Seeds for requests that bring none.

    Args:
        seed: They follow from it and from their number; ``None`` draws them from the system.
    """

    def __init__(self, seed: int | None) -> None:
        self._seed, self._num_drawn = seed, 0

    def draw(self) -> int:
        """The next one, of 64 bits."""
        if self._seed is None:
            return secrets.randbits(64)
        self._num_drawn += 1
        return derive_seed(self._seed, self._num_drawn)
