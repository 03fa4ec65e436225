"""Decode and prefill against the roofline, and against transformers.

    python -m benchmarks.gpu.speed --device cuda

A decode step must at least read weights and KV once: its time times the bandwidth over those bytes
says how far away we are (1.0 is the roofline; the same for prefill with 2 FLOPs per parameter and
token over the peak rate).
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import torch

from benchmarks import make_checkpoint
from benchmarks.gpu.environment import record
from twostroke.core.config import EngineConfig
from twostroke.core.generation_request import GenerationRequest
from twostroke.core.sampling_params import SamplingParams
from twostroke.engine.llm_engine import LLMEngine
from twostroke.runtime.loading import load_torch_executor

# Bytes/s and bf16 FLOP/s that were measured on such devices.
ROOFLINES = {"cuda": (4.3e12, 790e12), "cpu": (29.7e9, 396e9)}
PROMPT, OUTPUT = 256, 64


def decode_row(folder: Path, device: str, batch: int) -> dict[str, Any]:
    """Median time of a step that decodes ``batch`` requests, and of their prompts' prefill."""
    memory = 2**32 if device.startswith("cuda") else 2**30
    options = {"model": str(folder), "device": device, "max_num_batched_tokens": PROMPT * batch}
    config = EngineConfig.from_flat(
        {**options, "kv_cache_memory": memory, "enable_prefix_caching": False}
    )
    executor = load_torch_executor(config)
    engine = LLMEngine(executor, config=config)
    params = SamplingParams(temperature=0, max_tokens=OUTPUT, ignore_eos=True, detokenize=False)
    times: list[tuple[int, float]] = []
    for round_ in range(2):  # the first one warms up
        times.clear()
        for number in range(batch):
            prompt = [(number * 31 + i * 17 + round_) % 4000 + 5 for i in range(PROMPT)]
            engine.submit(
                GenerationRequest(
                    request_id=f"{round_}-{number}", prompt_token_ids=prompt, params=params
                )
            )
        while engine.has_work():
            began = time.perf_counter()
            engine.step()
            times.append((engine.recorder.events()[-1].num_tokens, time.perf_counter() - began))
    info = executor.info
    decode = statistics.median(seconds for tokens, seconds in times if tokens == batch)
    prefill = sum(seconds for tokens, seconds in times if tokens > batch)
    bandwidth, peak = ROOFLINES[device.split(":")[0]]
    read = info.weight_bytes + batch * (PROMPT + OUTPUT / 2) * info.kv_bytes_per_token
    flops = 2 * executor.model.spec.num_parameters * batch * PROMPT
    engine.close()
    return {
        "batch": batch,
        "decode_ms": 1e3 * decode,
        "decode_over_roofline": decode * bandwidth / read,
        "prefill_tokens_per_second": batch * PROMPT / prefill,
        "prefill_over_roofline": prefill * peak / flops,
    }


def transformers_decode_ms(folder: Path, device: str, batch: int) -> float:
    """The same prompts through ``generate``: mean milliseconds per step after the first."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).to(device)
    ids = torch.randint(5, 4000, (batch, PROMPT), device=device)

    def seconds(new_tokens: int) -> float:
        began = time.perf_counter()
        model.generate(
            ids,
            max_new_tokens=new_tokens,
            min_new_tokens=new_tokens,
            do_sample=False,
            pad_token_id=0,
        )
        return time.perf_counter() - began

    seconds(2)
    return 1e3 * (seconds(OUTPUT) - seconds(2)) / (OUTPUT - 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--size", default="350m", choices=sorted(make_checkpoint.SIZES))
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--results", type=Path, default=Path("benchmarks/gpu/results"))
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / args.size
        with redirect_stdout(StringIO()):
            make_checkpoint.main(args.size, str(folder))
        for batch in args.batches:
            row = {"size": args.size, **decode_row(folder, args.device, batch)}
            row["transformers_decode_ms"] = transformers_decode_ms(folder, args.device, batch)
            rows.append(row)
            print(
                {
                    key: round(value, 3) if isinstance(value, float) else value
                    for key, value in row.items()
                }
            )
    record(args.results, "speed", args.device, rows)


if __name__ == "__main__":
    main()
