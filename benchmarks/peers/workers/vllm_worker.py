"""vLLM's CPU build: its own loop in this process, default settings but for the sizes."""

from __future__ import annotations

import argparse
import os

from benchmarks.peers.workers.protocol import Clock, Prompts, serve

# Before it is imported: the loop in this process, as twostroke's is, and room for 1 GiB of keys and
# values.
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--threads", type=int, required=True)
    args = parser.parse_args()
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", f"0-{args.threads - 1}")

    import vllm

    llm = vllm.LLM(args.model, dtype="bfloat16", max_model_len=1024, max_num_seqs=64)
    engine, count = llm.llm_engine, 0

    def run(prompts: Prompts, output_len: int, clock: Clock) -> None:
        nonlocal count
        count += 1
        params = vllm.SamplingParams(
            temperature=0, max_tokens=output_len, ignore_eos=True, detokenize=False
        )
        for index, prompt in enumerate(prompts):
            engine.add_request(f"{count}-{index}", {"prompt_token_ids": prompt}, params)
        num_tokens = [0] * len(prompts)
        while engine.has_unfinished_requests():
            for output in engine.step():
                index, tokens = (
                    int(output.request_id.split("-")[1]),
                    list(output.outputs[0].token_ids),
                )
                clock.note(index, tokens[num_tokens[index] :])
                num_tokens[index] = len(tokens)

    serve("vLLM", vllm.__version__, run)


if __name__ == "__main__":
    main()
