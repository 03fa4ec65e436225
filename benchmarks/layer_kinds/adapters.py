"""What LoRA adapters cost: time per output token of a batch, with none, one and several.

    python -m benchmarks.layer_kinds.adapters MODEL

MODEL is a folder, such as `benchmarks/make_checkpoint.py 350m` writes. The adapters are random, on
all linear layers of attention and MLP. The same requests come without adapters, with one for all of
them, and with several in turn; ratios are taken within a round.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

import cyclopts
from safetensors.torch import load_file
from torch import Tensor

from tests.runtime.adapters.peft_files import adapter_config, adapter_tensors, write_adapter
from twostroke.core.config import EngineConfig
from twostroke.core.generation_request import GenerationRequest
from twostroke.core.sampling_params import SamplingParams
from twostroke.engine.adapters.registry import Adapters
from twostroke.engine.llm_engine import LLMEngine
from twostroke.runtime.loading import load_torch_executor


def make_engine(model: Path, folder: Path, names: list[str], rank: int) -> LLMEngine:
    """An engine that knows random adapters of these names."""
    base: dict[str, Tensor] = {}
    for file in sorted(model.glob("*.safetensors")):
        base |= load_file(file)
    paths = []
    for seed, name in enumerate(names):
        own = adapter_tensors(base, rank=rank, seed=seed, std=0.02)
        own = {key: value.bfloat16() for key, value in own.items()}
        paths.append(write_adapter(folder / name, adapter_config(rank=rank), own))
    config = EngineConfig.from_flat(
        {
            "model": str(model),
            "device": "cpu",
            "dtype": "bfloat16",
            "kv_cache_memory": 2**29,
            "max_model_len": 1024,
            "enable_prefix_caching": False,
            "lora": tuple(f"{name}={path}" for name, path in zip(names, paths, strict=True)),
        }
    )
    adapters = Adapters(config.adapters)
    return LLMEngine(
        load_torch_executor(config, adapters=adapters), config=config, adapters=adapters
    )


def time_per_token(engine: LLMEngine, names: list[str], count: int, output_len: int) -> float:
    """Median seconds of a step in which all of ``count`` requests get a token."""
    params = SamplingParams(max_tokens=output_len, temperature=0, ignore_eos=True, detokenize=False)
    for number in range(count):
        prompt = [(7 * number + place) % 90 + 3 for place in range(32)]
        engine.submit(
            GenerationRequest(
                request_id=str(number),
                prompt_token_ids=prompt,
                adapter=names[number % len(names)],
                params=params,
            )
        )
    steps = []
    while engine.has_work():
        began = time.perf_counter()
        engine.step()
        steps.append(time.perf_counter() - began)
    return statistics.median(steps[2:])


def main(
    model: Path,
    *,
    adapters: int = 4,
    rank: int = 16,
    requests: int = 16,
    output_len: int = 32,
    rounds: int = 5,
) -> None:
    """Print the time of a step, and the ratio to one without adapters.

    Args:
        model: A folder.
        adapters: How many there are.
        rank: Of each.
        requests: In the batch.
        output_len: Tokens of each answer.
        rounds: Of all batches in turn; one more comes first and is not counted.
    """
    names = [f"adapter-{index}" for index in range(adapters)]
    batches = {
        "none": [""],
        "one request's": [names[0], *[""] * (requests - 1)],
        "one": names[:1],
        str(adapters): names,
    }
    with tempfile.TemporaryDirectory(prefix="twostroke-adapters-") as folder:
        engine = make_engine(model, Path(folder), names, rank)
        times = [
            {
                kind: time_per_token(engine, own, requests, output_len)
                for kind, own in batches.items()
            }
            for _ in range(rounds + 1)
        ][1:]
    print(f"adapters of rank {rank}, {requests} requests, {rounds} rounds")
    for kind in batches:
        ratio = statistics.median(each[kind] / each["none"] for each in times)
        milliseconds = 1e3 * statistics.median(each[kind] for each in times)
        print(f"{kind:>14}: {milliseconds:.1f} ms a token, {ratio:.3f} times none")


if __name__ == "__main__":
    cyclopts.run(main)
