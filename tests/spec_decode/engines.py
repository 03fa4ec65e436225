"""Real engines on a tiny random model, with speculation and without."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.server.tiny import CONTEXT, checkpoint
from twostroke.core.config import EngineConfig
from twostroke.core.generation_request import GenerationRequest
from twostroke.core.sampling_params import SamplingParams
from twostroke.engine.llm_engine import LLMEngine
from twostroke.runtime.loading import load_torch_executor


def make_engine(**options: Any) -> LLMEngine:
    """In float32 on the CPU, without a tokenizer."""
    settings = {
        "model": str(checkpoint()),
        "dtype": "float32",
        "device": "cpu",
        "max_model_len": CONTEXT,
        "block_size": 4,
        "kv_cache_memory": 2**20,
        **options,
    }
    config = EngineConfig.from_flat(settings)
    return LLMEngine(load_torch_executor(config), config=config)


def answers(
    engine: LLMEngine,
    prompt: Sequence[int],
    params: Sequence[SamplingParams],
    prediction: Sequence[int] = (),
) -> list[list[int]]:
    """The output tokens of one request for each of ``params``, all run together."""
    for number, one in enumerate(params):
        engine.submit(
            GenerationRequest(
                request_id=str(number),
                prompt_token_ids=list(prompt),
                params=one,
                prediction_token_ids=list(prediction),
            )
        )
    tokens: list[list[int]] = [[] for _ in params]
    while engine.has_work():
        for output in engine.step():
            assert output.error is None
            assert output.num_accepted_drafts <= len(output.draft_token_ids)
            tokens[int(output.request_id)] += output.token_ids
        engine.scheduler.kv.check_integrity()
    return tokens


def metric(engine: LLMEngine, sample: str, **labels: str) -> float:
    name = engine.config.model.model
    values = {"model_name": name, "engine": "0", **labels}
    return engine.metrics.registry.get_sample_value(sample, values) or 0.0
