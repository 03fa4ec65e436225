"""What rounding keys and values costs: `pilot` with each format against bfloat16.

    python -m benchmarks.kv_formats.quality

The model's own path, prefill through the compiled kernels. Answers to held-out phrasings of its
question bank, each alone (short range), and many of these conversations one after the other up to
8,192 tokens, the model's context, judged from token 4,096 on (long range). Writes
results/quality.json and .md beside this file.
"""

from __future__ import annotations

import json
import math
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import cyclopts
import numpy as np
import torch
from torch import Tensor

from benchmarks.environment import OtherPrograms, environment, environment_text
from benchmarks.quantization import held_out
from twostroke.checkpoints.open_checkpoint import open_checkpoint
from twostroke.core.kv_formats import KVCacheDtype
from twostroke.kernels.library import load_library
from twostroke.layers.attention.base import AttentionMetadata
from twostroke.model_spec.model_files import resolve_model
from twostroke.models.decoder import Decoder
from twostroke.models.support import read_runnable
from twostroke.runtime.backends import attention_backend
from twostroke.runtime.cache_layouts import cache_layouts
from twostroke.runtime.kv_tensors import KVTensors
from twostroke.runtime.weights import load_model

RESULTS = Path(__file__).parent / "results"
FORMATS: tuple[KVCacheDtype, ...] = ("bfloat16", "int8", "int4", "fp8")
CONTEXT, LONG_RANGE, BLOCK_SIZE, ROWS = 8192, 4096, 16, 1024


@dataclass(frozen=True, slots=True)
class Text:
    """Token ids, and which of them are judged."""

    ids: list[int]
    judged: list[int]


@dataclass(slots=True)
class Score:
    """One format over all judged tokens.

    Attributes:
        changed: Share of positions whose likeliest token is another than with bfloat16.
        right: Share whose likeliest token is the text's.
        divergence: Mean KL divergence from bfloat16's distribution, nats a token.
    """

    tokens: int = 0
    perplexity: float = 0.0
    changed: float = 0.0
    right: float = 0.0
    divergence: float = 0.0


def main(
    *, phrasings: int = 400, documents: int = 3, threads: int | None = None, out: Path = RESULTS
) -> None:
    """Measure and record.

    Args:
        phrasings: Held-out questions, each alone.
        documents: Texts of 8,192 tokens, of other phrasings.
        threads: By default as many as PyTorch takes.
    """
    torch.set_num_threads(threads or torch.get_num_threads())
    other_programs = OtherPrograms()
    folder = resolve_model("pilot", None)
    passages = held_out(folder, phrasings + 110 * documents)
    short = [Text(p.ids, list(range(p.start, len(p.ids)))) for p in passages[:phrasings]]
    long = join([(p.ids, p.start) for p in passages[phrasings:]], documents)
    spec = read_runnable(open_checkpoint(folder))
    if (library := load_library()) is not None:
        library.set_num_threads(torch.get_num_threads())
    model = load_model(
        open_checkpoint(folder), spec, "bfloat16", torch.device("cpu"), CONTEXT, None
    )
    scores = {
        "short range": judge(model, short, FORMATS),
        "long range": judge(model, long, FORMATS),
    }
    where = environment(
        shlex.join(["python", "-m", "benchmarks.kv_formats.quality", *sys.argv[1:]]),
        other_programs.share(),
    )
    write(scores, where, out)


def join(passages: Sequence[tuple[list[int], int]], documents: int) -> list[Text]:
    """Conversations one after the other, up to the context; answers beyond ``LONG_RANGE`` count."""
    texts, rest = [], list(passages)
    for _ in range(documents):
        ids: list[int] = []
        judged: list[int] = []
        while len(ids) < CONTEXT and rest:
            conversation, start = rest.pop()
            judged += range(len(ids) + start, len(ids) + len(conversation))
            ids += conversation
        judged = [index for index in judged if LONG_RANGE <= index < CONTEXT]
        texts.append(Text(ids[:CONTEXT], judged))
    return [text for text in texts if text.judged]


@torch.inference_mode()
def judge(
    model: Decoder, texts: Sequence[Text], formats: Sequence[KVCacheDtype]
) -> dict[str, Score]:
    """All ``formats`` over the same texts."""
    scores: dict[str, Score] = {name: Score() for name in formats}
    for number, text in enumerate(texts):
        print(f"{number + 1} of {len(texts)}", end="\r", file=sys.stderr)
        hidden = {name: states(model, text, name) for name in formats}
        for start in range(0, len(text.judged), ROWS):
            part = slice(start, start + ROWS)
            wanted = torch.tensor([text.ids[index] for index in text.judged[part]])
            logs = {name: model.logits(rows[part]).log_softmax(1) for name, rows in hidden.items()}
            for name, log in logs.items():
                add(scores[name], log, logs["bfloat16"], wanted)
    for score in scores.values():
        score.perplexity = math.exp(score.perplexity / score.tokens)
        score.changed /= score.tokens
        score.right /= score.tokens
        score.divergence /= score.tokens
    return scores


def states(model: Decoder, text: Text, name: KVCacheDtype) -> Tensor:
    """Hidden states before each judged token, from one pass that writes and reads a cache."""
    blocks, count = -(-len(text.ids) // BLOCK_SIZE), len(text.ids)
    layouts = cache_layouts(model.spec, name, model.dtype, BLOCK_SIZE)
    kv = KVTensors(layouts, blocks, model.device)
    backend = attention_backend(model.spec, kv)
    table = np.arange(blocks, dtype=np.int32)[None]
    metadata = AttentionMetadata(
        np.array([0, count]), np.array([count]), table, torch.arange(count)
    )
    rows = torch.tensor([index - 1 for index in text.judged])
    ids, positions = torch.tensor(text.ids), torch.arange(count)
    return model.forward(ids, positions, backend.prepare(metadata), rows)


def add(score: Score, log: Tensor, exact: Tensor, wanted: Tensor) -> None:
    """Sums over some tokens: ``log`` and ``exact`` [tokens, vocabulary] log-probabilities."""
    likeliest = log.argmax(1)
    score.tokens += len(wanted)
    score.perplexity -= float(log.gather(1, wanted[:, None]).double().sum())
    score.changed += int((likeliest != exact.argmax(1)).sum())
    score.right += int((likeliest == wanted).sum())
    score.divergence += float((exact.exp() * (exact - log)).double().sum())


def write(scores: dict[str, dict[str, Score]], where: dict[str, object], folder: Path) -> None:
    lines = [
        "| text | cache | tokens | perplexity | right | likeliest token changed | mean KL, nats |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for text, by_format in scores.items():
        for name, s in by_format.items():
            lines.append(
                f"| {text} | {name} | {s.tokens:,} | {s.perplexity:.4f} | {s.right:.3%} |"
                f" {s.changed:.3%} | {s.divergence:.1e} |"
            )
    report = (
        f"# What formats of the KV cache cost in quality\n\n{environment_text(where)}\n"
        + "\n".join(lines)
        + "\n\n`pilot` in bfloat16, answers to held-out phrasings of its question bank. Short"
        "\nrange: each alone. Long range: conversations one after the other to 8,192 tokens, judged"
        "\nfrom token 4,096 on. Changed: against bfloat16 in the same run.\n"
    )
    folder.mkdir(parents=True, exist_ok=True)
    record = {
        "environment": where,
        "scores": {
            text: {name: asdict(score) for name, score in by_format.items()}
            for text, by_format in scores.items()
        },
    }
    (folder / "quality.json").write_text(json.dumps(record, indent=1) + "\n")
    (folder / "quality.md").write_text(report)
    print(report)


if __name__ == "__main__":
    cyclopts.run(main)
