"""A quantised model beside the one that it was made from: which of its tokens change."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from twostroke.core.config import EngineConfig
from twostroke.core.generation_request import GenerationRequest
from twostroke.core.logprobs import PositionLogprobs
from twostroke.core.sampling_params import SamplingParams
from twostroke.engine.llm_engine import LLMEngine
from twostroke.startup import load_engine

SEQUENCES, LENGTH = 8, 256  # tokens that are compared
KV_BYTES = 2**28
Tokens = Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True)
class ComparedTokens:
    """Over the same tokens.

    Attributes:
        tokens: How many were compared.
        same: At how many of them the likeliest token is the same.
        perplexity_before, perplexity_after: Exp of the mean negative log-likelihood.
    """

    tokens: int
    same: int
    perplexity_before: float
    perplexity_after: float


def compare_models(
    before: str, after: str, text: str | None, context: int, say: Callable[[str], None]
) -> ComparedTokens:
    """Run both, one after the other.

    Args:
        before, after: Their folders.
        text: What to compare on; by default what the first model itself writes, drawn with seeds.
        context: Most tokens of a sequence.
        say: Told what comes next.
    """
    length = min(LENGTH, context - 1)
    say("loading the model as it was")
    engine = _load(before, length + 1)
    try:
        tokens = _write(engine, length) if text is None else _split(engine, text, length)
        was = _judge(engine, tokens)
    finally:
        engine.close()
    del engine  # its memory, before the other's
    say("loading the quantised model")
    engine = _load(after, length + 1)
    try:
        now = _judge(engine, tokens)
    finally:
        engine.close()
    same = sum(a.top[0].token_id == b.top[0].token_id for a, b in zip(was, now, strict=True))
    return ComparedTokens(len(was), same, _perplexity(was), _perplexity(now))


def _load(model: str, length: int) -> LLMEngine:
    options = {"model": model, "max_model_len": length, "kv_cache_memory": KV_BYTES}
    return load_engine(EngineConfig.from_flat(options))


def _split(engine: LLMEngine, text: str, length: int) -> Tokens:
    assert engine.tokenizer is not None
    ids = engine.tokenizer.encode(text)[: SEQUENCES * length]
    return [part for i in range(0, len(ids), length) if len(part := ids[i : i + length]) > 1]


def _write(engine: LLMEngine, length: int) -> Tokens:
    """Texts that the model writes after nothing but the token that begins or ends one."""
    tokenizer = engine.tokenizer
    assert tokenizer is not None
    start = tokenizer.encode("") or [*engine.info.eos_token_ids][:1] or [0]
    params = [
        SamplingParams(temperature=1.0, seed=seed, max_tokens=length - len(start), ignore_eos=True)
        for seed in range(SEQUENCES)
    ]
    outputs = _run(engine, [start] * SEQUENCES, params)
    return [[*start, *ids] for ids, _ in outputs]


def _judge(engine: LLMEngine, tokens: Tokens) -> list[PositionLogprobs]:
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=1)
    outputs = _run(engine, tokens, [params] * len(tokens))
    return [position for _, positions in outputs for position in positions]


def _run(
    engine: LLMEngine, prompts: Tokens, params: Sequence[SamplingParams]
) -> list[tuple[list[int], list[PositionLogprobs]]]:
    """Each prompt's answer, and what is known of the prompt."""
    results = [(list[int](), list[PositionLogprobs]()) for _ in prompts]
    for number, (prompt, own) in enumerate(zip(prompts, params, strict=True)):
        engine.submit(
            GenerationRequest(request_id=str(number), prompt_token_ids=[*prompt], params=own)
        )
    while engine.has_work():
        for output in engine.step():
            ids, positions = results[int(output.request_id)]
            if output.error is not None:
                raise output.error.to_exception()
            ids += output.token_ids
            positions += output.prompt_logprobs or []
    return results


def _perplexity(positions: Sequence[PositionLogprobs]) -> float:
    return math.exp(-sum(one.chosen.logprob for one in positions) / max(len(positions), 1))
