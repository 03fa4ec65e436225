"""How far answers are from those of transformers, on each way that a request can take."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from tests.checkpoints import random_tensors, write_checkpoint
from tests.steps import StepDriver
from twostroke.core.config import EngineConfig
from twostroke.core.generation_request import GenerationRequest
from twostroke.core.sampling_params import SamplingParams
from twostroke.engine.llm_engine import LLMEngine
from twostroke.layers.attention.reference import ReferenceAttention
from twostroke.layers.recurrent_state import FreshStates
from twostroke.runtime.loading import load_torch_executor
from twostroke.runtime.torch_executor import TorchExecutor

TOKENS = torch.randint(0, 96, (45,), generator=torch.Generator().manual_seed(1)).tolist()
CHUNKS = ([45], [1] * 45, [10, 20, 1, 1, 2, 11], [3, 8, 9, 25])
TOLERANCE = 1e-4  # of logits, in float32
OPTIONS: dict[str, Any] = {
    "device": "cpu",
    "max_num_seqs": 4,
    "max_model_len": 128,
    "block_size": 4,
}


@dataclass(frozen=True, slots=True)
class Distances:
    """The largest distance of any logit (after a hit: of a log-probability) from transformers'.

    Attributes:
        whole: In one pass without a cache.
        chunks: Through the paged cache, in chunks of several sizes.
        preempted: After half the tokens were computed and lost.
        hit: After a prefix hit.
    """

    whole: float
    chunks: float
    preempted: float
    hit: float

    def largest(self) -> float:
        return max(self.whole, self.chunks, self.preempted, self.hit)


def measure_distances(raw: dict[str, Any], folder: Path) -> Distances:
    """Writes a checkpoint of random float32 weights of ``raw`` (``config.json``) to ``folder``."""
    # Rounding grows with the inputs, that of the delta rule most, in both implementations.
    std = (0.1 if "linear_num_key_heads" in raw else 0.3) * (32 / raw["hidden_size"]) ** 0.5
    tensors = random_tensors(raw, std=std)
    expected = transformers_logits(raw, tensors, torch.float32)
    write_checkpoint(folder, raw, tensors)
    return distances_from(folder, expected)


def distances_from(folder: Path, expected: torch.Tensor, **options: Any) -> Distances:
    """Those of a checkpoint from the logits ``[tokens, vocab]`` that it should give."""
    driver = StepDriver.load(folder, **OPTIONS, **options)
    whole = whole_logits(driver.executor)
    chunked = []
    for chunks in CHUNKS:
        driver.reset()
        chunked.append(driver.chunked_logits(TOKENS, chunks))
    driver.reset()
    driver.add("lost", TOKENS)
    driver.hidden({"lost": 21})
    driver.release("lost")
    driver.hidden({"lost": 40})
    with torch.inference_mode():
        last = driver.executor.model.logits(driver.hidden({"lost": 5})["lost"])
    return Distances(
        whole=_largest(whole - expected),
        chunks=max(_largest(logits - expected) for logits in chunked),
        preempted=_largest(last - expected[40:]),
        hit=_distance_after_hit(folder, expected[-1].log_softmax(-1), options),
    )


# Whose own code transformers does not have, and what it is called there.
CALLED = {"kimi_k2": "deepseek_v3"}


def transformers_logits(
    raw: dict[str, Any], tensors: dict[str, torch.Tensor], dtype: torch.dtype
) -> torch.Tensor:
    """What transformers computes for ``TOKENS`` in one pass: ``[tokens, vocab]``."""
    from transformers import AutoModelForCausalLM

    raw = {**raw, "model_type": CALLED.get(raw["model_type"], raw["model_type"])}
    with TemporaryDirectory() as folder:
        write_checkpoint(Path(folder), raw, tensors)
        model, found = AutoModelForCausalLM.from_pretrained(
            folder, attn_implementation="eager", dtype=dtype, output_loading_info=True
        )
    assert not (found["missing_keys"] or found["unexpected_keys"] or found["mismatched_keys"])
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([TOKENS])).logits[0].float()
    return logits


def whole_logits(executor: TorchExecutor) -> torch.Tensor:
    """Those of ``TOKENS`` in one pass without a cache: ``[tokens, vocab]``."""
    model = executor.model
    with torch.inference_mode():
        specs = [layer.attention for layer in model.spec.each_layer()]
        attention = ReferenceAttention(model.spec.sliding_windows, None, specs)
        states = FreshStates(model.state_shapes, len(TOKENS), model.device)
        positions = torch.arange(len(TOKENS))
        hidden = model.forward(torch.tensor(TOKENS), positions, attention, states=states)
        return model.logits(hidden)


def _distance_after_hit(folder: Path, expected: torch.Tensor, options: dict[str, Any]) -> float:
    """Of the likeliest tokens after ``TOKENS``, most of which an earlier request computed."""
    config = EngineConfig.from_flat({"model": str(folder), **OPTIONS, **options})
    engine = LLMEngine(load_torch_executor(config), config=config)
    for length in (30, len(TOKENS)):
        params = SamplingParams(max_tokens=1, temperature=0.0, logprobs=20, detokenize=False)
        engine.submit(
            GenerationRequest(
                request_id=f"{length}", prompt_token_ids=TOKENS[:length], params=params
            )
        )
        outputs = []
        while engine.has_work():
            outputs += engine.step()
    (output,) = outputs
    assert output.num_cached_tokens >= 28 and output.logprobs is not None
    (position,) = output.logprobs
    return max(abs(top.logprob - expected[top.token_id].item()) for top in position.top)


def _largest(difference: torch.Tensor) -> float:
    return difference.abs().max().item()
