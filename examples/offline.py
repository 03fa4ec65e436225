"""Generate and chat in this process, without a server: ``python examples/offline.py``."""

from __future__ import annotations

import argparse

from twostroke import LLM, SamplingParams


def main(model: str, max_tokens: int) -> None:
    params = SamplingParams(temperature=0, max_tokens=max_tokens)
    with LLM(model) as llm:
        # All prompts run together; results come in the order of the prompts.
        for result in llm.generate(["Prefill is", "Decode is"], params):
            print(f"{result.prompt!r} goes on with {result.text!r}")

        question = {"role": "user", "content": "Why is decode slower than prefill?"}
        answer = llm.chat([question], params)[0]
        sample = answer.outputs[0]
        why = sample.finish_reason.value if sample.finish_reason else "nothing"
        print(f"\n{question['content']}\n{answer.text}")
        print(
            f"({len(answer.prompt_token_ids)} tokens in, {len(sample.token_ids)} out, ended by"
            f" {why})"
        )

        # Several answers to one prompt share its keys and values; with a seed they are the same
        # every time.
        varied = SamplingParams(n=3, temperature=1.0, seed=7, max_tokens=max_tokens)
        print("\nThree samples:")
        for sample in llm.chat([question], varied)[0].outputs:
            print(f"- {sample.text!r}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--model", default="pilot", help="pilot, a checkpoint folder or a Hugging Face Hub id"
    )
    parser.add_argument("--max-tokens", type=int, default=64)
    options = parser.parse_args()
    main(options.model, options.max_tokens)
