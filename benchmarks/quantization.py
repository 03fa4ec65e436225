"""What rounding the weights costs in quality.

    python -m benchmarks.quantization RANDOM_CHECKPOINT

On text: the perplexity of `pilot` on the answers of its question bank, after phrasings that it was
not trained on. On a random checkpoint, whose logits follow from nothing but the weights: the
divergence of the next token's distribution from that in bfloat16. Writes
benchmarks/results/quantization.json and .md.
"""

from __future__ import annotations

import json
import math
import random
import shlex
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import cyclopts
import torch
from torch import Tensor

from benchmarks.environment import OtherPrograms, environment, environment_text
from training.bank import hashed_fraction, load_bank
from twostroke.checkpoints.open_checkpoint import open_checkpoint
from twostroke.kernels.library import load_library
from twostroke.model_spec.model_files import resolve_model
from twostroke.models.decoder import Decoder
from twostroke.models.support import read_runnable
from twostroke.runtime.reference import naive_logits
from twostroke.runtime.weights import load_model
from twostroke.text.chat_template import ChatTemplate
from twostroke.text.tokenizer import Tokenizer

RESULTS = Path(__file__).parent / "results"
FORMATS = ("bfloat16", "int8", "int4")


@dataclass(frozen=True, slots=True)
class Passage:
    """Token ids, and the index of the first that is judged."""

    ids: list[int]
    start: int


@dataclass(frozen=True, slots=True)
class Error:
    """One format against bfloat16.

    Attributes:
        perplexity: exp of the mean negative log-likelihood of the judged tokens; ``None`` for
            random weights.
        divergence: Mean KL divergence from bfloat16's next-token distribution, nats a token.
        worst: The largest of these.
        same: Share of positions at which the likeliest token is the same.
    """

    perplexity: float | None
    divergence: float
    worst: float
    same: float


def main(checkpoint: Path, *, phrasings: int = 400, out: Path = RESULTS) -> None:
    """Measure and record.

    Args:
        checkpoint: Folder of a random checkpoint (`benchmarks/make_checkpoint.py 10m`).
        phrasings: How many of the held-out phrasings, chosen by a hash of each.
    """
    other_programs, library = OtherPrograms(), load_library()
    if library is None:
        raise SystemExit(
            "error: the compiled kernels are not there\n\nhint: python hatch_build.py says why"
        )
    library.set_num_threads(torch.get_num_threads())
    pilot = resolve_model("pilot", None)
    text = held_out(pilot, phrasings)
    draw = random.Random(0)
    vocabulary = read_runnable(open_checkpoint(checkpoint)).vocab_size
    noise = [Passage([draw.randrange(300, vocabulary) for _ in range(128)], 0) for _ in range(8)]
    errors_by_model = {
        "pilot": errors(pilot, text, True),
        checkpoint.name: errors(checkpoint, noise, False),
    }
    where = environment(
        shlex.join(["python", "-m", "benchmarks.quantization", *sys.argv[1:]]),
        other_programs.share(),
    )
    tokens = {"pilot": sum(len(one.ids) - one.start for one in text), checkpoint.name: 8 * 128}
    _write(errors_by_model, tokens, where, out)


def held_out(model: Path, count: int) -> list[Passage]:
    """Held-out questions of the bank, each with its answer as the model would write it."""
    tokenizer = Tokenizer.from_folder(model)
    template = ChatTemplate.from_tokenizer(tokenizer)
    pairs = [
        (p, item.answer)
        for item in load_bank().items
        for p in (*item.held_out, *item.held_out_wide)
    ]
    passages = []
    for question, answer in sorted(pairs, key=lambda pair: hashed_fraction(pair[0]))[:count]:
        messages = [{"role": "user", "content": question}]
        prompt = template.render(messages, add_generation_prompt=True)
        whole = template.render(
            [*messages, {"role": "assistant", "content": answer}], add_generation_prompt=False
        )
        start = len(tokenizer.encode(prompt, add_special_tokens=False))
        passages.append(Passage(tokenizer.encode(whole, add_special_tokens=False), start))
    return passages


def errors(folder: Path, sequences: Sequence[Passage], is_text: bool) -> dict[str, Error]:
    """All formats of one model, over the same sequences."""
    spec = read_runnable(open_checkpoint(folder))
    device, length = torch.device("cpu"), max(len(one.ids) for one in sequences)
    models = {
        name: load_model(
            open_checkpoint(folder),
            spec,
            "bfloat16",
            device,
            length,
            None if name == "bfloat16" else name,
        )
        for name in FORMATS
    }
    losses: dict[str, list[float]] = {name: [] for name in FORMATS}
    divergences: dict[str, list[float]] = {name: [] for name in FORMATS}
    same: dict[str, list[float]] = {name: [] for name in FORMATS}
    for one in sequences:
        exact = _log_probabilities(models["bfloat16"], one)  # [tokens, vocabulary]
        for name, model in models.items():
            rounded = exact if name == "bfloat16" else _log_probabilities(model, one)
            if is_text:
                losses[name] += (
                    (-rounded.gather(1, torch.tensor(one.ids[one.start :])[:, None]))
                    .flatten()
                    .tolist()
                )
            divergences[name] += (exact.exp() * (exact - rounded)).sum(1).tolist()
            same[name] += (exact.argmax(1) == rounded.argmax(1)).double().tolist()
    return {
        name: Error(
            math.exp(statistics.fmean(losses[name])) if is_text else None,
            statistics.fmean(divergences[name]),
            max(divergences[name]),
            statistics.fmean(same[name]),
        )
        for name in FORMATS
    }


def _log_probabilities(model: Decoder, one: Passage) -> Tensor:
    """Of what stands at, or after, each judged position: ``[judged, vocabulary]``."""
    if one.start == 0:
        return naive_logits(model, one.ids).double().log_softmax(1)
    return naive_logits(model, one.ids)[one.start - 1 : -1].double().log_softmax(1)


def _write(
    errors_by_model: dict[str, dict[str, Error]],
    tokens: dict[str, int],
    where: dict[str, object],
    folder: Path,
) -> None:
    lines = [
        (
            "| model | weights | perplexity | beside bfloat16 | mean KL, nats | largest | same"
            " likeliest token |"
        ),
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for model, formats in errors_by_model.items():
        exact = formats["bfloat16"].perplexity
        for name, e in formats.items():
            text, change = ("", "") if e.perplexity is None else (f"{e.perplexity:.4f}", "")
            if e.perplexity is not None and exact is not None and name != "bfloat16":
                change = f"{e.perplexity / exact - 1:+.2%}"
            lines.append(
                f"| {model} | {name} | {text} | {change} | {e.divergence:.2g} | {e.worst:.2g} |"
                f" {e.same:.2%} |"
            )
    report = (
        f"# What quantization costs in quality\n\n{environment_text(where)}\n"
        + "\n".join(lines)
        + f"\n\npilot: {tokens['pilot']} tokens of answers to held-out phrasings of its question"
        "\nbank. The other has random weights and reads random tokens. Activations are rounded to"
        " int8,\na scale per token, in both formats.\n"
    )
    folder.mkdir(parents=True, exist_ok=True)
    record = {
        "environment": where,
        "tokens": tokens,
        "errors": {
            model: {name: asdict(e) for name, e in formats.items()}
            for model, formats in errors_by_model.items()
        },
    }
    (folder / "quantization.json").write_text(json.dumps(record, indent=1) + "\n")
    (folder / "quantization.md").write_text(report)
    print(report)


if __name__ == "__main__":
    cyclopts.run(main)
