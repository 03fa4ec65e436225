"""twostroke: the engine's own loop, as ``LLM`` and the server run it."""

from __future__ import annotations

import argparse
import json
import time
from importlib.metadata import version

import torch

from benchmarks.peers.workers.protocol import Clock, Prompts, serve
from twostroke.core.generation_request import GenerationRequest
from twostroke.core.sampling_params import SamplingParams
from twostroke.core.structured_outputs import StructuredOutputsParams
from twostroke.engine.answer import raise_output_error
from twostroke.llm import LLM


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--quantization", choices=["int8", "int4"])
    parser.add_argument("--speculative-config")
    parser.add_argument("--schema", help="of answers")
    parser.add_argument("--kv-cache-dtype", default="auto")
    parser.add_argument("--kv-cache-memory", type=int, default=2**30)
    parser.add_argument("--max-model-len", type=int)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    began = time.perf_counter()
    llm = LLM(
        args.model,
        quantization=args.quantization,
        speculative_config=args.speculative_config,
        kv_cache_memory=args.kv_cache_memory,
        kv_cache_dtype=args.kv_cache_dtype,
        max_model_len=args.max_model_len,
        max_num_seqs=64,
    )
    seconds = time.perf_counter() - began
    engine, count = llm.engine, 0
    form = None
    if args.schema:
        schema = json.loads(args.schema)
        form = StructuredOutputsParams(json=schema, disable_any_whitespace=True)

    def run(prompts: Prompts, output_len: int, clock: Clock) -> None:
        nonlocal count
        count += 1
        params = SamplingParams(
            temperature=0, max_tokens=output_len, ignore_eos=form is None, structured_outputs=form
        )
        for index, prompt in enumerate(prompts):
            engine.submit(
                GenerationRequest(
                    request_id=f"{count}-{index}", prompt_token_ids=prompt, params=params
                )
            )
        while engine.has_work():
            for output in engine.step():
                raise_output_error(output)
                clock.note(int(output.request_id.split("-")[1]), output.token_ids)

    own, format = version("twostroke"), args.quantization or "bf16"
    serve("twostroke", own, run, load_seconds=seconds, format=format)


if __name__ == "__main__":
    main()
