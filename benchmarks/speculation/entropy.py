"""Greedy drafts checked by equality beside rejection sampling, on text with more entropy.

    python -m benchmarks.speculation.entropy

Target pilot, draft pilot-draft. Answers are drawn from the target, to the bank's held-out questions
and to open ones that the bank has no answer to. At each position both distributions are computed,
from the same text. Then a draft is accepted with probability

- greedy, by equality: p(argmax q), since the token that is drawn anyway must be the draft;
- rejection sampling: sum of min(p, q) (Leviathan et al. 2023, corollary 3.6);

with p and q of target and draft at the temperature. Both are expectations over the draws, so the
noise of a single draw is no part of them. Writes draft_entropy.json and .md.
"""

from __future__ import annotations

import shlex
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import cyclopts
import torch
from torch import Tensor

from benchmarks.environment import OtherPrograms, environment, environment_text, write_record
from benchmarks.speculation.tasks import questions
from twostroke.core.sampling_params import SamplingParams
from twostroke.llm import LLM
from twostroke.runtime.reference import naive_logits
from twostroke.runtime.torch_executor import TorchExecutor

RESULTS = Path(__file__).parents[1] / "results"
OPEN = (
    "Write a short story about a lighthouse keeper.",
    "Describe a city where nobody sleeps.",
    "What would you say to somebody who has lost their keys?",
    "Invent a game for three players and explain its rules.",
    "Tell me about a dream that you might have.",
    "Write a letter from a tree to the wind.",
    "What is the most beautiful number, and why?",
    "Make up a recipe with five ingredients.",
    "Describe the taste of water to a machine.",
    "Write a poem about a slow train.",
    "What could we learn from clouds?",
    "Tell me a secret that nobody knows.",
    "Argue that Mondays are the best day.",
    "How would you spend a day without numbers?",
    "Write the first lines of a novel.",
    "Explain music to a stone.",
)


@dataclass(slots=True)
class Rates:
    """Means over positions.

    Attributes:
        entropy: Of the target's distribution, in bits.
        highest: Probability of the target's likeliest token.
        equality: Acceptance of the greedy draft; ``rejection``: of a sampled one.
    """

    positions: int = 0
    entropy: float = 0.0
    highest: float = 0.0
    equality: float = 0.0
    rejection: float = 0.0

    def add(self, p: Tensor, q: Tensor) -> None:
        """Take in rows of two distributions, float64 ``[positions, vocabulary]``."""
        count = len(p)
        values = {
            "entropy": -(p * p.clamp_min(1e-300).log2()).sum(-1),
            "highest": p.max(-1).values,
            "equality": p.gather(-1, q.argmax(-1, keepdim=True)).squeeze(-1),
            "rejection": torch.minimum(p, q).sum(-1),
        }
        for name, rows in values.items():
            mean = getattr(self, name)
            total = mean * self.positions + float(rows.sum())
            setattr(self, name, total / (self.positions + count))
        self.positions += count


@torch.inference_mode()
def measure(
    target: LLM, draft: LLM, prompts: list[list[int]], temperature: float, max_tokens: int
) -> Rates:
    """Draw answers from the target, and compare the two models' distributions along them."""
    params = [
        SamplingParams(temperature=temperature, seed=index, max_tokens=max_tokens)
        for index in range(len(prompts))
    ]
    rates = Rates()
    for prompt, result in zip(prompts, target.generate(prompts, params)):
        tokens = [*prompt, *result.outputs[0].token_ids]
        rows = slice(len(prompt) - 1, len(tokens) - 1)
        p, q = (_distribution(llm, tokens, rows, temperature) for llm in (target, draft))
        rates.add(p, q)
    return rates


def _distribution(llm: LLM, tokens: list[int], rows: slice, temperature: float) -> Tensor:
    executor = llm.engine.executor
    assert isinstance(executor, TorchExecutor)
    logits = naive_logits(executor.model, tokens)[rows]
    return (logits.double() / temperature).softmax(-1)


def main(
    *,
    temperatures: tuple[float, ...] = (0.3, 0.7, 1.0, 1.3),
    num_questions: int = 32,
    max_tokens: int = 96,
    out: Path = RESULTS,
) -> None:
    """Measure and record (a minute)."""
    other_programs = OtherPrograms()
    rows, figures = [], []
    shared: dict[str, Any] = {"device": "cpu", "kv_cache_memory": 2**28, "max_model_len": 512}
    with LLM("pilot", **shared) as target, LLM("pilot-draft", **shared) as draft:
        held_out = [target.chat_prompt(each) for each in questions(0, num_questions)]
        opened = [target.chat_prompt([{"role": "user", "content": text}]) for text in OPEN]
        free = [target.tokenizer.encode(text) for text in ("The", "A", "In", "When", "If", "One")]
        groups = (
            ("the bank's held-out questions", held_out),
            ("open questions", opened),
            ("a first word, no question", free),
        )
        for name, prompts in groups:
            for temperature in temperatures:
                rates = measure(target, draft, prompts, temperature, max_tokens)
                figures.append({"text": name, "temperature": temperature, **asdict(rates)})
                rows.append(
                    f"| {name} | {temperature:g} | {rates.positions:,} | {rates.entropy:.2f} |"
                    f" {rates.highest:.2f} | {rates.equality:.3f} | {rates.rejection:.3f} |"
                )
                print(rows[-1], file=sys.stderr, flush=True)
    where = environment(
        shlex.join(["python", "-m", "benchmarks.speculation.entropy", *sys.argv[1:]]),
        other_programs.share(),
    )
    header = (
        "| text | T | tokens | entropy, bits | likeliest token | greedy, by equality | rejection"
        " sampling |\n|---|---:|---:|---:|---:|---:|---:|"
    )
    text = (
        f"{environment_text(where)}- pilot drafts by pilot-draft; expected acceptance of one draft"
        f" after accepted text\n\n{header}\n" + "\n".join(rows)
    )
    record = {"environment": where, "figures": figures}
    write_record(out / "draft_entropy", "Drafts where text has more entropy", text, record)
    print(text)


if __name__ == "__main__":
    cyclopts.run(main)
