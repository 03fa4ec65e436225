"""What the host does between two passes: microseconds of a step at 256 requests, without a model.

    python -m benchmarks.gpu.host

The engine's own scheduler over an executor that draws without computing. On a GPU all this runs
beside a pass of some milliseconds (docs/decisions/0040-steps-are-launched-ahead.md).
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

from tests.fakes import FakeExecutor
from twostroke.core.config import EngineConfig
from twostroke.core.generation_request import GenerationRequest
from twostroke.core.sampling_params import SamplingParams
from twostroke.engine.llm_engine import LLMEngine

PROMPT, OUTPUT = 16, 100


def timed(call: Callable[..., Any], seconds: list[float]) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        began = time.perf_counter()
        result = call(*args)
        seconds.append(time.perf_counter() - began)
        return result

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=256)
    args = parser.parse_args()
    options = {"model": "fake", "device": "cpu", "max_num_seqs": args.requests}
    options |= {"max_num_batched_tokens": args.requests * PROMPT}
    executor = FakeExecutor(num_blocks=args.requests * 40, block_size=16, max_model_len=512)
    engine = LLMEngine(executor, config=EngineConfig.from_flat(options))
    params = SamplingParams(temperature=0, max_tokens=OUTPUT, ignore_eos=True, detokenize=False)
    for number in range(args.requests):
        ids = [(number * 7 + i) % 48 + 1 for i in range(PROMPT)]
        engine.submit(
            GenerationRequest(request_id=str(number), prompt_token_ids=ids, params=params)
        )
    engine.step()  # all prompts
    parts: dict[str, list[float]] = {"schedule": [], "update": []}
    for name, seconds in parts.items():
        setattr(engine.scheduler, name, timed(getattr(engine.scheduler, name), seconds))
    for _ in range(OUTPUT - 10):
        engine.step()
    for name, seconds in parts.items():
        print(f"{name}: {1e6 * statistics.median(seconds):.0f} us at {args.requests} requests")


if __name__ == "__main__":
    main()
