"""What the stop strings of a call cost: once a call, however many samples look for them."""

from __future__ import annotations

import time
import tracemalloc

from tests.engine.calls import TOKENIZER
from tests.fakes import FakeExecutor
from twostroke.core.generation_request import GenerationRequest
from twostroke.core.sampling_params import (
    MAX_SAMPLES,
    MAX_STOP_STRING_LENGTH,
    MAX_STOP_STRINGS,
    SamplingParams,
)
from twostroke.engine.llm_engine import LLMEngine

PERIODIC = ("ab" * MAX_STOP_STRING_LENGTH)[: MAX_STOP_STRING_LENGTH - 2]


def add_samples(stop: tuple[str, ...]) -> tuple[float, int]:
    """Seconds and bytes that the engine's thread takes for 8 prompts with 128 samples each."""
    engine = LLMEngine(FakeExecutor(), TOKENIZER)
    params = SamplingParams(n=MAX_SAMPLES, max_tokens=4, stop=stop)
    messages = [
        engine.prepare(
            GenerationRequest(request_id=f"r{i}", prompt_token_ids=[1, 2, i + 1], params=params)
        )
        for i in range(8)
    ]
    tracemalloc.start()
    try:
        before, began = tracemalloc.get_traced_memory()[0], time.process_time()
        for message in messages:
            engine.add(message)
        return time.process_time() - began, tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()


def test_long_stop_strings_cost_once_a_call() -> None:
    """1,024 samples compiled 16 strings of 1,024 characters each: 3 s and half a gigabyte."""
    stop = tuple(f"{PERIODIC}{i:02}" for i in range(MAX_STOP_STRINGS))
    seconds, size = add_samples(stop)
    plain_seconds, plain_size = add_samples(())
    assert size - plain_size < 2 * 2**20
    assert seconds - plain_seconds < 0.5
