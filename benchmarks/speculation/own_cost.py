"""What speculation takes of a step where nothing can be guessed, in CPU time of one thread.

    python -m benchmarks.speculation.own_cost [MODEL]

Random prompts and answers, as of `never_slower.py`; medians over steps of what choosing depths,
taking in steps, noting texts and drafting take. CPU time and medians say more than a clock on a
machine that others use as well.
"""

from __future__ import annotations

import json
import random
import statistics
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import cyclopts

from benchmarks.speculation.never_slower import PROMPT, TEMPERATURE
from benchmarks.speculation.rounds import engines, run_round
from twostroke.core.sampling_params import SamplingParams
from twostroke.engine.llm_engine import LLMEngine
from twostroke.runtime.hooks.drafts import ProposedDrafts
from twostroke.runtime.torch_executor import TorchExecutor


def main(
    model: str = "pilot",
    *,
    methods: tuple[str, ...] = ("ngram", "draft", "medusa"),
    concurrency: tuple[int, ...] = (1, 4),
    rounds: int = 5,
    output_len: int = 200,
) -> None:
    """Print microseconds a step by part.

    Args:
        model: Whose answers are guessed.
        methods: Of `--speculation`.
        concurrency: Requests at once.
        rounds: How many are measured, after one that is not.
        output_len: Tokens of an answer.
    """
    for method in methods:
        settings = {"speculative_config": json.dumps({"method": method})}
        for count in concurrency:
            with engines(
                model, {method: settings}, kv_cache_memory=2**27, max_model_len=1024
            ) as loaded:
                spent = _measured(loaded[method], count, rounds, output_len)
            parts = ", ".join(
                f"{name} {1e6 * statistics.median(each):.0f}" for name, each in spent.items()
            )
            print(f"{method}, {count} requests, us a step: {parts}", flush=True)


def _measured(
    engine: LLMEngine, count: int, rounds: int, output_len: int
) -> dict[str, list[float]]:
    """Seconds of each step by part."""
    depth, executor = engine.scheduler.depth, engine.executor
    assert isinstance(executor, TorchExecutor)
    drafts = next((hook for hook in executor.hooks if isinstance(hook, ProposedDrafts)), None)
    proposer = None if drafts is None else drafts.proposer
    parts = {
        "choose": depth,
        "observe": depth,
        "update": proposer,
        "propose": proposer,
        "step": engine,
    }
    spent: dict[str, list[float]] = {name: [] for name in parts}
    now: Counter[str] = Counter()
    for name, owner in parts.items():
        setattr(owner, name, _timed(getattr(owner, name), name, now, spent))
    for number in range(rounds + 1):
        draw = random.Random(number)
        vocabulary = range(300, engine.info.vocab_size)
        prompts = [draw.choices(vocabulary, k=PROMPT) for _ in range(count)]
        params = [
            SamplingParams(
                temperature=TEMPERATURE,
                seed=draw.randrange(2**32),
                max_tokens=output_len,
                ignore_eos=True,
                detokenize=False,
            )
            for _ in range(count)
        ]
        if number == 1:
            for each in spent.values():
                each.clear()
        run_round(engine, prompts, params)
    return spent


def _timed(
    function: Callable[..., Any], name: str, now: Counter[str], spent: dict[str, list[float]]
) -> Callable[..., Any]:
    """``function``, whose CPU time is added to this step's; a step's end notes all parts."""

    def timed(*args: Any, **named: Any) -> Any:
        began = time.thread_time_ns()
        try:
            return function(*args, **named)
        finally:
            now[name] += time.thread_time_ns() - began
            if name == "step":
                for part, each in spent.items():
                    each.append(1e-9 * now[part])
                now.clear()

    return timed


if __name__ == "__main__":
    cyclopts.run(main)
