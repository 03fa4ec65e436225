"""What bfloat16 states cost in likelihood: the same tokens, scored with either format of states.

    python -m benchmarks.layer_kinds.state_formats MODEL [MODEL ...]

Each MODEL is a folder with a hybrid, such as `benchmarks/make_checkpoint.py qwen3.5-10m` writes.
Texts are drawn by the model itself at temperature 1, so that its likelihoods are those of what it
would write, however it was trained.
"""

from __future__ import annotations

import statistics
from contextlib import closing
from pathlib import Path

import cyclopts

from twostroke.core.kv_formats import StateDtype
from twostroke.core.sampling_params import SamplingParams
from twostroke.llm import LLM


def drawn_texts(folder: Path, num_texts: int, num_tokens: int) -> list[list[int]]:
    """Token ids of ``num_texts`` texts that the model draws, with float32 states."""
    with closing(_open(folder, "float32")) as llm:
        params = [
            SamplingParams(temperature=1, max_tokens=num_tokens, ignore_eos=True, seed=number)
            for number in range(num_texts)
        ]
        answers = llm.generate([[number + 1] for number in range(num_texts)], params)
        return [[number + 1, *answer.outputs[0].token_ids] for number, answer in enumerate(answers)]


def log_likelihoods(folder: Path, states: StateDtype, texts: list[list[int]]) -> list[float]:
    """Natural logarithms of the probability of each token but the first of each text."""
    found: list[float] = []
    with closing(_open(folder, states)) as llm:
        params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
        for answer in llm.generate(texts, params):
            positions = answer.outputs[0].prompt_logprobs
            assert positions is not None, "they were asked for"
            found += [position.chosen.logprob for position in positions]
    return found


def _open(folder: Path, states: StateDtype) -> LLM:
    return LLM(str(folder), kv_cache_memory=2**30, max_num_seqs=8, mamba_ssm_cache_dtype=states)


def main(*models: Path, texts: int = 8, tokens: int = 1000) -> None:
    """Print a row for each model.

    Args:
        models: Folders of hybrids.
        texts: Texts of each model.
        tokens: Of each text.
    """
    print("| model | tokens | nats a token, float32 | bfloat16 | mean change | largest |")
    print("|---|---|---|---|---|---|", flush=True)
    for folder in models:
        drawn = drawn_texts(folder, texts, tokens)
        wide, narrow = (log_likelihoods(folder, kind, drawn) for kind in ("float32", "bfloat16"))
        changes = [abs(a - b) for a, b in zip(wide, narrow, strict=True)]
        print(
            f"| {folder.name} | {len(wide)} | {-statistics.mean(wide):.4f} |"
            f" {-statistics.mean(narrow):.4f} | {statistics.mean(changes):.1e} |"
            f" {max(changes):.1e} |",
            flush=True,
        )


if __name__ == "__main__":
    cyclopts.run(main)
