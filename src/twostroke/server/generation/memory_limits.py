"""How large a call may become in memory: each limit by itself is harmless, the product is not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from twostroke.core.errors import InvalidRequestError
from twostroke.core.output import RequestOutput
from twostroke.core.sampling_params import MAX_LOGPROBS, MAX_SAMPLES, SamplingParams
from twostroke.engine.answer import CollectedAnswer
from twostroke.engine.executor import ExecutorInfo

# Log-probabilities kept for one call, of some 450 bytes each. One answer of the context's length
# may have all that it can.
MAX_LOGPROB_ENTRIES = 2**21
# Tokens of prompts, of 8 bytes each: every sample holds a copy. One prompt of the context's length
# may have all its samples.
MAX_PROMPT_COPIES = 2**24
# Tokens of an answer without ``max_tokens`` whose log-probabilities have room from the start.
OPEN_ENDED_TOKENS = 1024
# Above this many entries the answer is put together on a thread: some 10 ms of work.
MANY_ENTRIES = 2_000


def num_possible_entries(
    info: ExecutorInfo, prompts: Sequence[Sequence[int]], params: SamplingParams
) -> int:
    """The most tokens and log-probabilities that all answers to ``prompts`` can have together."""
    total = 0
    for prompt in prompts:
        room = max(1, info.max_model_len - len(prompt))
        room = room if info.max_new_tokens is None else min(room, info.max_new_tokens)
        length = room if params.max_tokens is None else min(room, params.max_tokens)
        total += length * (params.num_logprobs + 1)
        total += 0 if params.prompt_logprobs is None else len(prompt) * (params.prompt_logprobs + 1)
    return total * params.n


def num_promised_entries(
    info: ExecutorInfo, prompts: Sequence[Sequence[int]], params: SamplingParams
) -> int:
    """The log-probabilities that a call finds room for: all that it can have, given ``max_tokens``.

    Without it answers of ``OPEN_ENDED_TOKENS`` have their room, and longer ones must find more.
    """
    if params.logprobs is None and params.prompt_logprobs is None:
        return 0
    if params.max_tokens is None:
        params = replace(params, max_tokens=OPEN_ENDED_TOKENS)
    return num_possible_entries(info, prompts, params)


def num_prompt_entries(prompts: Sequence[Sequence[int]], params: SamplingParams) -> Sequence[int]:
    """The log-probabilities of each prompt's own tokens, which all its samples share."""
    if params.prompt_logprobs is None:
        return [0] * len(prompts)
    return [len(prompt) * (params.prompt_logprobs + 1) for prompt in prompts]


def num_output_entries(output: RequestOutput) -> int:
    """Log-probabilities that a step added to an answer."""
    positions = (*(output.logprobs or ()), *(output.prompt_logprobs or ()))
    return sum(len(position.top) + 1 for position in positions)


def num_answer_entries(answer: CollectedAnswer) -> int:
    """Tokens, log-probabilities and elements that an answer has: what it takes to write it out."""
    positions = (*answer.logprobs, *(answer.prompt_logprobs or ()))
    num_elements = len(answer.vector or b"") // 4
    return len(answer.token_ids) + num_elements + sum(len(p.top) for p in positions)


def check_entries(
    info: ExecutorInfo, prompts: Sequence[Sequence[int]], params: SamplingParams
) -> None:
    """Raise ``InvalidRequestError`` if a call may keep too many log-probabilities."""
    if params.logprobs is None and params.prompt_logprobs is None:
        return
    limit = max(MAX_LOGPROB_ENTRIES, info.max_model_len * (MAX_LOGPROBS + 1))
    if (entries := num_possible_entries(info, prompts, params)) > limit:
        answers = len(prompts) * params.n
        message = (
            f"{answers} answers of this length may have {entries} log-probabilities, at most"
            f" {limit} are kept"
        )
        hint = "lower max_tokens, n or the number of log-probabilities, or send several requests"
        raise InvalidRequestError(
            message,
            param="logprobs" if params.logprobs is not None else "prompt_logprobs",
            hint=hint,
        )


def check_copies(
    info: ExecutorInfo, prompts: Sequence[Sequence[int]], params: SamplingParams
) -> None:
    """Raise ``InvalidRequestError`` if all samples together hold too many prompt tokens."""
    limit = max(MAX_PROMPT_COPIES, info.max_model_len * MAX_SAMPLES)
    if (copies := sum(map(len, prompts)) * params.n) > limit:
        message = (
            f"{len(prompts)} prompts with n={params.n} hold {copies} tokens together, at most"
            f" {limit} are taken"
        )
        raise InvalidRequestError(message, param="n", hint="lower n, or send several requests")
