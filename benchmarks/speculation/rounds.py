"""Rounds of requests on engines that take turns, and what speculation made of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

from twostroke.core.config import EngineConfig
from twostroke.core.generation_request import GenerationRequest
from twostroke.core.sampling_params import SamplingParams
from twostroke.engine.answer import raise_output_error
from twostroke.engine.llm_engine import LLMEngine
from twostroke.startup import load_engine

# Every request computes its own prompt: hits would make some rounds shorter than others.
SHARED: dict[str, Any] = {"enable_prefix_caching": False, "max_num_seqs": 64}


@dataclass(slots=True)
class Round:
    """What one engine made of one batch of requests that came at once.

    Attributes:
        seconds: Until the last token.
        tpots: Seconds per token after the first, of each request with two or more.
        answers: Tokens of each request.
    """

    seconds: float = 0.0
    tpots: list[float] = field(default_factory=list)
    answers: list[list[int]] = field(default_factory=list)
    drafted: int = 0
    accepted: int = 0

    @property
    def tokens(self) -> int:
        return sum(map(len, self.answers))

    @property
    def tpot(self) -> float:
        return statistics.mean(self.tpots)

    @property
    def throughput(self) -> float:
        return self.tokens / self.seconds

    @property
    def tokens_per_pass(self) -> float:
        """A pass gives a request the drafts that it accepts and one token more."""
        return self.tokens / max(1, self.tokens - self.accepted)


@contextmanager
def engines(
    model: str, variants: Mapping[str, Mapping[str, Any]], **options: Any
) -> Iterator[dict[str, LLMEngine]]:
    """One engine for each variant, with weights and KV cache of its own."""
    with ExitStack() as stack:
        loaded = {}
        for name, own in variants.items():
            config = EngineConfig.from_flat({"model": model, **SHARED, **options, **own})
            loaded[name] = stack.enter_context(closing(load_engine(config)))
        yield loaded


def run_round(
    engine: LLMEngine, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams]
) -> Round:
    """All prompts at once, until the last has its answer."""
    began = time.perf_counter()
    for number, (prompt, wanted) in enumerate(zip(prompts, params, strict=True)):
        engine.submit(
            GenerationRequest(request_id=str(number), prompt_token_ids=list(prompt), params=wanted)
        )
    times: list[list[float]] = [[0.0, 0.0] for _ in prompts]
    done = Round(answers=[[] for _ in prompts])
    while engine.has_work():
        outputs = engine.step()
        now = time.perf_counter()
        for output in outputs:
            raise_output_error(output)
            number = int(output.request_id)
            times[number][bool(done.answers[number])] = now
            done.answers[number] += output.token_ids
            done.drafted += len(output.draft_token_ids)
            done.accepted += output.num_accepted_drafts
    done.seconds = time.perf_counter() - began
    for (first, last), answer in zip(times, done.answers):
        if len(answer) > 1 and last:
            done.tpots.append((last - first) / (len(answer) - 1))
    return done


def in_turn(
    loaded: Mapping[str, LLMEngine],
    number: int,
    prompts: Sequence[Sequence[int]],
    params: Sequence[SamplingParams],
) -> dict[str, Round]:
    """One round on every engine, each time another one first."""
    names = list(loaded)
    turn = number % len(names)
    order = names[turn:] + names[:turn]
    return {name: run_round(loaded[name], prompts, params) for name in order}


@dataclass(frozen=True, slots=True)
class Summary:
    """Several rounds of one variant beside those without speculation: medians.

    Attributes:
        speedup: TPOT without, over TPOT with; ``speedups`` of each round.
        throughput_ratio: Output tokens a second with, over those without.
        same_tokens: Whether every answer was the same.
    """

    speedup: float
    throughput_ratio: float
    acceptance: float | None
    tokens_per_pass: float
    tpot_ms: float
    plain_tpot_ms: float
    same_tokens: bool
    speedups: list[float]


def summarize(rounds: Sequence[Round], plain: Sequence[Round]) -> Summary:
    """Ratios are taken within rounds, so that what else the machine does meets both sides."""
    drafted, accepted = (sum(getattr(r, name) for r in rounds) for name in ("drafted", "accepted"))
    tokens = sum(r.tokens for r in rounds)
    speedups = [without.tpot / r.tpot for r, without in zip(rounds, plain, strict=True)]
    return Summary(
        speedup=statistics.median(speedups),
        throughput_ratio=statistics.median(
            r.throughput / without.throughput for r, without in zip(rounds, plain)
        ),
        acceptance=accepted / drafted if drafted else None,
        tokens_per_pass=tokens / max(1, tokens - accepted),
        tpot_ms=1e3 * statistics.median(r.tpot for r in rounds),
        plain_tpot_ms=1e3 * statistics.median(r.tpot for r in plain),
        same_tokens=all(r.answers == without.answers for r, without in zip(rounds, plain)),
        speedups=speedups,
    )
