"""A cache in int8 and int4 against bfloat16: tokens in the same bytes, likeliest tokens changed."""

from __future__ import annotations

import torch

from benchmarks.claims.report import Claim
from benchmarks.claims.workbench import Workbench
from benchmarks.kv_formats.quality import Score, Text, judge
from benchmarks.quantization import held_out
from twostroke.checkpoints.open_checkpoint import open_checkpoint
from twostroke.model_spec.model_files import resolve_model
from twostroke.models.support import read_runnable
from twostroke.runtime.weights import load_model

PHRASINGS = 60


def measure(bench: Workbench, phrasings: int = PHRASINGS) -> Claim:
    """`pilot`, whatever model the other claims run on: quality needs a model that knows something.

    Args:
        phrasings: Held-out questions.
    """
    folder = resolve_model("pilot", None)
    spec = read_runnable(open_checkpoint(folder))
    texts = [
        Text(passage.ids, list(range(passage.start, len(passage.ids))))
        for passage in held_out(folder, phrasings)
    ]
    bench.say(f"quantised cache: {len(texts)} answers in each format")
    length = max(len(text.ids) for text in texts)
    model = load_model(open_checkpoint(folder), spec, "bfloat16", torch.device("cpu"), length, None)
    scores = judge(model, texts, ("bfloat16", "int8", "int4"))
    plain = spec.kv_bytes_per_token("bfloat16")
    tokens = {name: plain / spec.kv_bytes_per_token(name) for name in ("int8", "int4")}
    return Claim(
        name="scaled_cache",
        claim="KV cache in int8 and int4 against bfloat16, tokens in the same bytes",
        measured=", ".join(_line(name, tokens[name], scores[name]) for name in tokens),
        conditions=(
            f"pilot in bfloat16, {scores['int8'].tokens:,} tokens of answers to held-out"
            " phrasings, scales counted"
        ),
        figures={
            "tokens": tokens,
            "changed": {name: scores[name].changed for name in tokens},
            "perplexity": {name: score.perplexity for name, score in scores.items()},
        },
    )


def _line(name: str, tokens: float, score: Score) -> str:
    return f"{name} {tokens:.2f}x ({score.changed:.2%} of the likeliest tokens change)"
