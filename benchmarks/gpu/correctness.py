"""Does a device give what the CPU's naive reference gives?

    python -m benchmarks.gpu.correctness --device cuda

For each model family: tiny random weights in float32, requests that share prefixes, run in chunks,
in too few blocks, greedy and sampled, through the engine on the device; every token is compared
with the loop without a cache on the CPU.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.gpu.environment import record
from tests.checkpoints import LLAMA3_ROPE, tiny_config, write_checkpoint
from twostroke.core.config import EngineConfig
from twostroke.core.generation_request import GenerationRequest
from twostroke.core.sampling_params import SamplingParams
from twostroke.engine.answer import raise_output_error
from twostroke.engine.llm_engine import LLMEngine
from twostroke.runtime.loading import load_torch_executor
from twostroke.runtime.reference import generate_naive

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"rope_scaling": LLAMA3_ROPE},
    "mistral": {"sliding_window": 9},
    "qwen2": {},
    "qwen3": {"head_dim": 16, "tie_word_embeddings": True},
}
BLOCK_SIZE = 8
BLOCKS = 24


def calls() -> list[GenerationRequest]:
    """Twelve requests: half share a prefix, half are sampled."""
    shared = [(7 * i) % 96 for i in range(20)]
    made = []
    for number in range(12):
        prompt = (shared if number % 2 else []) + [
            (number * 13 + i * 5) % 96 for i in range(5 + number)
        ]
        params = SamplingParams(
            temperature=0.0 if number % 3 else 1.0,
            top_p=0.9,
            repetition_penalty=1.1 if number % 4 == 0 else 1.0,
            seed=number,
            max_tokens=12,
            ignore_eos=True,
            detokenize=False,
        )
        made.append(
            GenerationRequest(request_id=str(number), prompt_token_ids=prompt, params=params)
        )
    return made


def compare(folder: Path, family: str, device: str) -> dict[str, Any]:
    """Run one family; count the requests whose tokens differ from the reference's."""
    options = {
        "model": str(folder),
        "device": device,
        "dtype": "float32",
        "max_model_len": 64,
        "max_num_batched_tokens": 24,
        "max_prefill_chunk": 16,
        "block_size": BLOCK_SIZE,
    }
    cpu = load_torch_executor(
        EngineConfig.from_flat({**options, "device": "cpu", "kv_cache_memory": 2**22})
    )
    bytes_per_block = cpu.info.kv_bytes_per_token * BLOCK_SIZE
    config = EngineConfig.from_flat({**options, "kv_cache_memory": BLOCKS * bytes_per_block})
    executor = load_torch_executor(config)
    engine = LLMEngine(executor, config=config)
    outputs: dict[str, list[int]] = {}
    for call in calls():
        engine.submit(call)
    while engine.has_work():
        for output in engine.step():
            raise_output_error(output)
            outputs.setdefault(output.request_id, []).extend(output.token_ids)
        engine.scheduler.kv.check_integrity()
    wrong = []
    for call in calls():
        expected, _ = generate_naive(
            cpu.model, call.prompt_token_ids, call.params, seed=call.params.seed or 0
        )
        if outputs[call.request_id] != expected:
            wrong.append(call.request_id)
    preemptions = engine.scheduler.batch.num_preemptions
    engine.close()
    return {
        "family": family,
        "requests": len(calls()),
        "different": wrong,
        "preemptions": preemptions,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--results", type=Path, default=Path("benchmarks/gpu/results"))
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        for family, changes in FAMILIES.items():
            folder = write_checkpoint(Path(scratch) / family, tiny_config(family, **changes))
            rows.append(compare(folder, family, args.device))
            print(rows[-1])
    record(args.results, "correctness", args.device, rows)
    if any(row["different"] for row in rows):
        raise SystemExit("some outputs differ from the reference")


if __name__ == "__main__":
    main()
