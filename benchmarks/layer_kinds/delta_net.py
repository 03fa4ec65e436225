"""Prefill of a hybrid model (gated delta rule) beside a dense model of the same parameters.

    python -m benchmarks.layer_kinds.delta_net

Both models have random weights and are written for the occasion: `qwen3.5-300m` of
`benchmarks/make_checkpoint.py`, and a Qwen3 of the same hidden size, layers and vocabulary whose
MLPs are so much wider that the parameters are the same. Their prompts take turns, and ratios are
taken within a pair.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import cyclopts

from benchmarks.make_checkpoint import SIZES, model_json, write_tokenizer, write_weights
from twostroke.core.generation_request import GenerationRequest
from twostroke.core.sampling_params import SamplingParams
from twostroke.engine.llm_engine import LLMEngine
from twostroke.llm import LLM
from twostroke.models.support import parse_runnable

HYBRID = model_json(SIZES["qwen3.5-300m"])
WIDTH = 32  # that a dense model's MLPs are a multiple of


def dense_twin(hybrid: dict[str, Any]) -> dict[str, Any]:
    """A Qwen3 of the same sizes, and of as many parameters but for half a layer's step of width."""
    own = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}
    kept = {name: value for name, value in hybrid.items() if not name.startswith("linear_")}

    def parameters(width: int) -> int:
        return parse_runnable({**kept, **own, "intermediate_size": width}).num_parameters

    wanted, least = parse_runnable(hybrid).num_parameters, parameters(WIDTH)
    steps = (wanted - least) / (parameters(2 * WIDTH) - least)
    return {**kept, **own, "intermediate_size": WIDTH * (1 + round(steps))}


def prefill(engine: LLMEngine, number: int, tokens: int) -> float:
    """Seconds from the request to its first token."""
    prompt = [3 + (7 * i + number) % 200 for i in range(tokens)]
    params = SamplingParams(temperature=0, max_tokens=1)
    name = f"{number}-{tokens}"
    request = GenerationRequest(request_id=name, prompt_token_ids=prompt, params=params)
    began = time.perf_counter()
    engine.submit(request)
    while engine.has_work():
        engine.step()
    return time.perf_counter() - began


def main(*, lengths: tuple[int, ...] = (512, 2048), rounds: int = 8) -> None:
    """Print the median ratio for each length, and its quarters.

    Args:
        lengths: Tokens of a prompt.
        rounds: Pairs of prompts; the first is not counted.
    """
    engines = []
    with tempfile.TemporaryDirectory() as folder:
        for name, raw in (("hybrid", HYBRID), ("dense", dense_twin(HYBRID))):
            path = Path(folder) / name
            path.mkdir()
            (path / "config.json").write_text(json.dumps(raw))
            write_tokenizer(raw["vocab_size"], path)
            count = write_weights(raw, path / "model.safetensors")
            print(f"{name}: {count / 1e6:.1f} M parameters")
            options: dict[str, Any] = {"enable_prefix_caching": False, "kv_cache_memory": 2**29}
            most = max(lengths)
            engines.append(LLM(str(path), max_num_batched_tokens=most, **options).engine)
    for length in lengths:
        pairs = []
        for number in range(rounds):
            turn = number % 2  # who goes first
            seconds = {i: prefill(engines[i], number, length) for i in (turn, 1 - turn)}
            pairs.append((seconds[0], seconds[1]))
        ratios = [hybrid / dense for hybrid, dense in pairs[1:]]
        low, middle, high = statistics.quantiles(ratios, n=4)
        hybrid, dense = (statistics.median(pair[side] for pair in pairs[1:]) for side in (0, 1))
        print(
            f"{length} tokens: hybrid {hybrid:.2f} s, dense {dense:.2f} s, ratio {middle:.3f}"
            f" ({low:.3f} to {high:.3f}), {len(ratios)} pairs",
            flush=True,
        )


if __name__ == "__main__":
    cyclopts.run(main)
