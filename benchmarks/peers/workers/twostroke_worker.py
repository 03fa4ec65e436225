"""twostroke: the engine's own loop, as ``LLM`` and the server run it."""

from __future__ import annotations

import argparse
from importlib.metadata import version

import torch

from benchmarks.peers.workers.protocol import Clock, Prompts, serve
from twostroke.core.sampling_params import SamplingParams
from twostroke.engine.answer import raise_output_error
from twostroke.engine.messages import GenerationRequest
from twostroke.llm import LLM


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--quantization", choices=["int8", "int4"])
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    llm = LLM(args.model, quantization=args.quantization, kv_cache_memory=2**30, max_num_seqs=64)
    engine, count = llm.engine, 0

    def run(prompts: Prompts, output_len: int, clock: Clock) -> None:
        nonlocal count
        count += 1
        params = SamplingParams(temperature=0, max_tokens=output_len, ignore_eos=True)
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

    serve("twostroke", version("twostroke"), run, format=args.quantization or "bf16")


if __name__ == "__main__":
    main()
