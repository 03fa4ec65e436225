"""One model in one process with all cores, and in two ranks that divide them: time of a step.

    python -m benchmarks.failover.tensor_parallel MODEL [--requests 1 --requests 16]

Steps of decoding, after a prompt each, and one step of a whole prompt. Of ranks also what the first
one spends in exchanges: sending, waiting for the other, adding up. Writes
benchmarks/results/tensor_parallel.json and .md.
"""

from __future__ import annotations

import random
import shlex
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cyclopts

from benchmarks.environment import OtherPrograms, environment, environment_text, write_record
from twostroke.core.config import EngineConfig
from twostroke.core.generation_request import GenerationRequest
from twostroke.core.sampling_params import SamplingParams
from twostroke.distributed.ranks import Ranks
from twostroke.engine.llm_engine import LLMEngine
from twostroke.runtime.loading import load_torch_executor

RESULTS = Path(__file__).parents[1] / "results"


class Exchanges:
    """Counts the seconds that this process spends in exchanges with other ranks."""

    def __init__(self) -> None:
        self.seconds = 0.0
        for name in ("sum", "join_columns", "from_first", "all_true"):
            setattr(Ranks, name, self._timed(getattr(Ranks, name)))

    def _timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            began = time.perf_counter()
            try:
                return call(*arguments)
            finally:
                self.seconds += time.perf_counter() - began

        return timed


def main(
    model: str,
    *,
    requests: tuple[int, ...] = (1, 16),
    prompt_tokens: int = 256,
    steps: int = 60,
    out: Path = RESULTS,
) -> None:
    """Measure and record.

    Args:
        model: Folder of a checkpoint.
        requests: How many decode at once.
        prompt_tokens: Length of each prompt.
        steps: Steps of decoding that are measured.
        out: Folder for the record.
    """
    other_programs, exchanges = OtherPrograms(), Exchanges()
    lines = [
        "| ranks | requests | a prompt, ms | exchanges | a decode step, ms | exchanges |",
        "|--:|--:|--:|--:|--:|--:|",
    ]
    record: dict[str, Any] = {}
    for ranks in (1, 2):
        config = EngineConfig.from_flat(
            {"model": model, "device": "cpu", "tensor_parallel_size": ranks, "max_model_len": 2048}
        )
        engine = LLMEngine(load_torch_executor(config), config=config)
        measure(engine, 1, prompt_tokens, 4, exchanges)  # what comes first takes longer
        for count in requests:
            prompt, decode = measure(engine, count, prompt_tokens, steps, exchanges)
            cells = " | ".join(f"{1e3 * each:.2f}" for each in (*prompt, *decode))
            lines.append(f"| {ranks} | {count} | {cells} |")
            record[f"{ranks} ranks, {count} requests"] = {"prompt": prompt, "decode": decode}
        engine.close()
    print("\n".join(lines))
    command = shlex.join(["python", "-m", "benchmarks.failover.tensor_parallel", *sys.argv[1:]])
    where = environment(command, other_programs.share())
    text = environment_text(where) + f"- {Path(model).name}, medians\n\n" + "\n".join(lines) + "\n"
    record["environment"] = where
    write_record(out / "tensor_parallel", "One model in two ranks", text, record)


def measure(
    engine: LLMEngine, count: int, prompt_tokens: int, steps: int, exchanges: Exchanges
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Seconds of a prompt's step and of a decode step, with those in exchanges."""
    params = SamplingParams(max_tokens=steps + 8, ignore_eos=True, detokenize=False, temperature=0)
    prompts, decodes = [], []
    drawn = random.Random(f"{count} {steps}")  # no prefix is cached
    for number in range(count):
        ids = [drawn.randrange(10, 1000) for _ in range(prompt_tokens)]
        engine.submit(
            GenerationRequest(
                request_id=f"{count}-{number}-{time.perf_counter_ns()}",
                prompt_token_ids=ids,
                params=params,
            )
        )
        prompts.append(timed_step(engine, exchanges))
    while engine.has_work():
        running = len(engine.scheduler.requests)
        step = timed_step(engine, exchanges)
        if running == count and len(engine.scheduler.requests) == count:
            decodes.append(step)
    return middle(prompts[:1]), middle(decodes)


def timed_step(engine: LLMEngine, exchanges: Exchanges) -> tuple[float, float]:
    exchanges.seconds, began = 0.0, time.perf_counter()
    engine.step()
    return time.perf_counter() - began, exchanges.seconds


def middle(steps: list[tuple[float, float]]) -> tuple[float, float]:
    whole, exchanged = zip(*steps, strict=True)
    return statistics.median(whole), statistics.median(exchanged)


if __name__ == "__main__":
    cyclopts.run(main)
